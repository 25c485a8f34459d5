"""A population of models as tables for a terminal, or as one for a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console

from excise._support.columns import print_columns
from excise.evidence.population.pieces import GROUPS

if TYPE_CHECKING:
    from excise.evidence.population.population import Measured, Population

ENOUGH_FOR_KLOM = 100  # models a side, below which its floor hides what it measures
DISTANCES = ("U-LiRA AUC", "TPR/FPR %", "KLoM95 forget", "test", "score", "|z| forget", "retain", "test", "left")
REST = ("accuracy forget", "retain", "test", "request", "preparation", "refused")
HEAD = (
    *("method", "U-LiRA AUC", "TPR/FPR %", "KLoM95 forget", "KLoM95 test", "score"),
    *(f"\\|z\\| {group}" for group in GROUPS),
    "left",
    *(f"accuracy {group}" for group in GROUPS),
    *("request", "preparation", "refused"),
)
EXPLANATION = (
    "U-LiRA AUC: how well an attacker who knows every sample's distribution tells unlearned models from retrained ones "
    "(0.5: not at all), with his true and false positives. KLoM95: divergence of margins from retraining's, 95th "
    "percentile over samples. Score: that of the NeurIPS 2023 competition before its adjustment, 1 is best. |z|: how "
    "far mean margins are from retraining's, in its standard deviations. Left: of |z| on forgotten samples, beyond the "
    "floor (1 nothing forgotten, 0 the floor). Accuracies in %; request and preparation in % of one retraining; "
    "refused: models of which nothing was forgotten. The last row is the floor: halves of the retrained models against "
    "each other."
)


def show(found: Population, console: Console) -> None:
    """Print how far the methods are from retraining, what else they do, and what the columns mean."""
    count = len(found.ids)
    console.print(
        f"{found.request}: {count} sample{'' if count == 1 else 's'}, {found.models} models a side\n",
        highlight=False,
        markup=False,
    )
    _print(found, console, DISTANCES, distances)
    console.print()
    _print(found, console, REST, rest)
    for sentence in (*cautions(found), EXPLANATION):
        console.print(f"\n{sentence}", highlight=False, markup=False)


def markdown(found: Population) -> str:
    """One table for a page, and below it what makes its figures doubtful."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for row in _rows(found):
        cells = (_name(found, row).replace("|", "\\|"), *distances(found, row), *rest(found, row))
        lines.append(f"| {' | '.join(cells)} |")
    for sentence in cautions(found):
        lines += ["", sentence]
    return "\n".join(lines)


def cautions(found: Population) -> list[str]:
    """What the number of models does not allow to conclude."""
    said = []
    if not found.is_enough:
        said.append(
            f"Note: {found.models} models a side are too few: differences between methods may be chance. Pass 20 or "
            "more (--models)."
        )
    if found.models < ENOUGH_FOR_KLOM:
        said.append(
            f"Note: KLoM needs about {ENOUGH_FOR_KLOM} models a side; with {found.models} it is large by itself, so "
            "look at it beside its floor only."
        )
    return said


def distances(found: Population, row: Measured) -> list[str]:
    """How far it is from retraining: the columns of the first table after its name."""
    left = math.nan if row is found.floor else found.share_left(row)
    return [
        f"{row.auc:.2f}",
        f"{100 * row.true_positives:.0f}/{100 * row.false_positives:.0f}",
        f"{row.klom['forget']:.2f}",
        f"{row.klom['test']:.2f}",
        f"{row.score:.2f}",
        *(f"{row.z[group]:.2f}" for group in GROUPS),
        "–" if math.isnan(left) else f"{left:.2f}",
    ]


def rest(found: Population, row: Measured) -> list[str]:
    """Accuracies, cost and refusals: the columns of the second table after its name."""
    return [*_percentages(row.accuracies), *_costs(found, row), f"{100 * row.refused:.0f} %" if row.refused else ""]


def _percentages(shares: Mapping[str, float]) -> list[str]:
    return [f"{100 * shares[group]:.1f}" for group in GROUPS]


def _costs(found: Population, row: Measured) -> list[str]:
    """Of a request and of its preparation; doing nothing has none, and retraining is the measure."""
    if row is found.rows[0]:
        return ["", ""]
    if row is found.floor:
        return ["100 %", ""]
    return [f"{100 * seconds / found.floor.seconds:.1f} %" for seconds in (row.seconds, row.preparation)]


def _rows(found: Population) -> list[Measured]:
    return [*found.rows, found.floor]


def _name(found: Population, row: Measured) -> str:
    return "retrained (floor)" if row is found.floor else row.name


def _print(
    found: Population, console: Console, head: tuple[str, ...], cells: Callable[[Population, Measured], list[str]]
) -> None:
    print_columns(console, ("method", *head), [[_name(found, row), *cells(found, row)] for row in _rows(found)])
