"""The budget of a ledger: ε and δ that all model versions since the last training may spend together.

Once there is one it is the ledger's: every later batch has to fit into it, whoever carries it out and however.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from excise.errors import InputError
from excise.ledger.events import Entry, Seal
from excise.ledger.schema import EVENTS, VERSIONS
from excise.ledger.seals import require_seal_of_version
from excise.ledger.versions import all_versions
from excise.privacy.accountant import Budget, BudgetAccountant

if TYPE_CHECKING:
    from excise.ledger.policy import Policy

TRAINED = ("trained", "retrained")
"""Methods after which nothing is spent."""


@dataclass(frozen=True)
class LedgerBudget:
    """What there is to spend, and what was spent since the last training."""

    total: Budget
    spent: tuple[Budget, ...]

    def accountant(self) -> BudgetAccountant:
        """One that has spent the same."""
        made = BudgetAccountant(*self.total)
        for one in self.spent:
            made.spend(*one)
        return made


def budget_of(connection: Connection, seal: Seal) -> LedgerBudget | None:
    """The ledger's budget; None where it has none."""
    newest = select(EVENTS.c.body).where(EVENTS.c.kind == "budget").order_by(EVENTS.c.number.desc()).limit(1)
    body = connection.execute(newest).scalar()
    if body is None:
        return None
    total = json.loads(body)
    spent: list[Budget] = []
    for version in all_versions(connection):
        require_seal_of_version(vars(version), version.record.get("seal"), seal)
        if version.method in TRAINED:
            spent = []
        elif version.epsilon is not None and version.delta is not None:
            spent.append(Budget(version.epsilon, version.delta))
    return LedgerBudget(Budget(total["epsilon"], total["delta"]), tuple(spent))


def require_noise_since_training(connection: Connection) -> None:
    """Refuse to begin a budget where a model was given out without noise: no ε holds for what it shows."""
    query = select(VERSIONS.c.number, VERSIONS.c.method, VERSIONS.c.epsilon).order_by(VERSIONS.c.number.desc())
    for number, method, epsilon in connection.execute(query):
        if method in TRAINED:
            return
        if epsilon is None:
            raise InputError(
                f"total can't begin now: model version {number} was given out without noise, so that no budget holds "
                "for the versions since the last training; retrain first (excise requests retrained)."
            )


def agreed(found: LedgerBudget | None, policy: Policy) -> list[Entry]:
    """The event that sets a budget, if the policy brings the first one; an error where the two do not agree."""
    if found is None:
        if policy.total is None:
            return []
        return [Entry("budget", {"epsilon": policy.total[0], "delta": policy.total[1]})]
    if policy.epsilon is None:
        raise InputError(
            f"the ledger has a budget of epsilon={found.total.epsilon:g}, delta={found.total.delta:g}, and a batch "
            "without noise would show all that is left of the samples; pass epsilon and delta of the batch."
        )
    if policy.total is not None and tuple(policy.total) != tuple(found.total):
        raise InputError(
            f"the ledger has a budget of epsilon={found.total.epsilon:g}, delta={found.total.delta:g}, not of "
            f"{policy.total[0]:g} and {policy.total[1]:g}; leave it out."
        )
    return []
