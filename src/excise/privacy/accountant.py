"""How many deletion requests fit into a budget of ε and δ until the model has to be retrained."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from excise._support.checks import require
from excise.errors import ExciseError, InputError
from excise.privacy.arguments import count, number
from excise.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from excise.privacy.ledger import locked, read_budget, write_budget

_MECHANISM = "gaussian"
_ROUNDING = 1 + 1e-9  # so that requests which use the budget up fit into it


class RetrainRequired(ExciseError):
    """A request does not fit into what is left of the budget; nothing was spent."""


@dataclass(frozen=True)
class SpentRequest:
    """What one deletion request spent."""

    epsilon: float
    """As it was asked for, before the data was looked at; this is what counts."""
    delta: float
    removed: int = 1
    certified: float | None = None
    """The ε that the request's certificate found afterwards, never more than was asked for; None if unknown."""

    @cached_property
    def mu(self) -> float:
        """The distance that its noise hides, in standard deviations: see ``gaussian_mu``."""
        return gaussian_mu(self.epsilon, self.delta)


class Budget(NamedTuple):
    """An amount of ε and δ."""

    epsilon: float
    delta: float


class BudgetAccountant:
    """Keeps what all deletion requests since the last training spend together within a budget of ε and δ.

    A request that is (ε_i, δ_i)-indistinguishable from retraining by Gaussian noise of its own hides a distance of
    μ_i = ``gaussian_mu(ε_i, δ_i)`` standard deviations. All models published since the training are together one
    Gaussian, at a distance of at most

        μ = √Σ μ_i²

    from as many retrained ones, so that they are (ε, δ)-indistinguishable exactly if ``gaussian_delta(1, μ, ε) ≤ δ``
    (Dong, Roth and Su 2022). It holds for later requests that depend on earlier models too (Smith and Thakurta 2022).
    It does not hold for noise that is not Gaussian, nor for the ε of a ``Certificate``, which is found afterwards.
    Threads may share an accountant, and processes one that is in a file: see ``at``.

    >>> budget = BudgetAccountant(1.0, 1e-5)
    >>> budget.capacity(0.25, 1e-6)  # it would be 4, if their ε just added up
    17
    >>> budget.spend(0.25, 1e-6)
    >>> round(budget.remaining.epsilon, 3), budget.capacity(0.25, 1e-6)
    (0.967, 16)
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self.total = Budget(number(epsilon, "epsilon", positive=True), number(delta, "delta", positive=True, below=1))
        self._history: list[SpentRequest] = []
        self._path: Path | None = None
        self._mu = gaussian_mu(*self.total)
        self._lock = threading.RLock()

    @classmethod
    def at(cls, path: str | Path, epsilon: float | None = None, delta: float | None = None) -> BudgetAccountant:
        """The budget that a file holds, which all processes spend from together; a new file for a new budget.

        Every request is written down before its model is given out. The file must be where locks work: not on every
        network drive.

        Args:
            path: The file, JSON. Keep it: without it nobody knows what is spent.
            epsilon: ε of the budget. A file that is there must have the same, or leave it out.
            delta: δ of the budget, alike.
        """
        place = Path(path).resolve()
        with locked(place):
            if not place.exists():
                if epsilon is None or delta is None:
                    raise InputError(f"{place}: there is no budget yet; pass epsilon= and delta= to make one.")
                budget = cls(epsilon, delta)
                write_budget(place, budget.state_dict())
            else:
                state = read_budget(place)
                _check_keys(state, ("mechanism", "epsilon", "delta", "history"), str(place))
                budget = cls(state["epsilon"], state["delta"])
                if (epsilon, delta) != (None, None) and (epsilon, delta) != tuple(budget.total):
                    raise InputError(
                        f"{place}: holds a budget of epsilon={budget.total.epsilon:g}, delta={budget.total.delta:g}, "
                        f"not of {epsilon!r} and {delta!r}; leave them out, or take another file."
                    )
                budget._checked_history(state)
        budget._path = place
        return budget

    @property
    def is_in_file(self) -> bool:
        """Whether all processes spend from it together."""
        return self._path is not None

    @property
    def history(self) -> list[SpentRequest]:
        """All requests since the last training; those of other processes too, where the budget is in a file."""
        return list(self._history) if self._path is None else self._checked_history(read_budget(self._path))

    @property
    def spent(self) -> Budget:
        """The ε, at the budget's δ, of all requests so far together."""
        mu = self._mu * math.sqrt(self._share())
        return Budget(gaussian_epsilon(1, mu, self.total.delta), self.total.delta)

    @property
    def remaining(self) -> Budget:
        """The largest ε that one more request can have, at the budget's δ.

        Where at that δ not even ε = 0 fits, it is 0 and the largest δ that a request of ε = 0 can have.
        """
        share = self._share()
        if share == 0:
            return self.total
        mu = self._mu * math.sqrt(max(1 - share, 0.0))
        epsilon = gaussian_epsilon(1, mu, self.total.delta)
        return Budget(epsilon, self.total.delta if epsilon > 0 else gaussian_delta(1, mu, 0))

    def capacity(self, epsilon_per_request: float, delta_per_request: float) -> int:
        """How many more requests of this ε and δ fit (``sys.maxsize`` where the end is out of sight)."""
        each = _request(epsilon_per_request, delta_per_request)
        if each.epsilon == each.delta == 0:
            raise InputError("epsilon_per_request and delta_per_request must not both be 0; any number of those fits.")
        left, share = _ROUNDING - self._share(), self._share_of(each)
        return bisect_left(range(sys.maxsize), True, key=lambda more: (more + 1) * share > left)

    def spend(self, epsilon: float, delta: float, *, removed: int = 1, certified: float | None = None) -> None:
        """Record a request, for all its samples together; ``RetrainRequired`` if it does not fit.

        ``certified`` is the ε of its certificate, which is recorded beside; one that is larger is refused.
        """
        request = _request(epsilon, delta, removed, certified)
        with self._alone():  # or two could both find room for the last request
            self._require_room(request)
            self._replace([*self.history, request])

    def require_room(self, epsilon: float, delta: float) -> None:
        """Raise ``RetrainRequired`` if such a request does not fit now; nothing is spent."""
        self._require_room(_request(epsilon, delta))

    def reset(self) -> None:
        """Begin anew, after the model was retrained without the forgotten samples."""
        with self._alone():
            self._replace([])

    def state_dict(self) -> dict[str, Any]:
        """The budget and all requests, in plain values that JSON can hold."""
        history = [_plain(request) for request in self.history]
        return {"mechanism": _MECHANISM, **self.total._asdict(), "history": history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the requests of a saved accountant of the same budget; after an error nothing has changed.

        What is spent stays spent: a state that lacks requests of this accountant is refused. A budget in a file keeps
        what the file says: a state that knows of other requests is refused.
        """
        history = self._checked_history(state)
        with self._alone():
            if self._path is None:
                if history[: len(self._history)] != self._history:
                    raise InputError(
                        f"state lacks some of the {len(self._history)} requests that this accountant has spent, and "
                        "models that were given out can't be taken back; load it into a new accountant."
                    )
                self._replace(history)
            elif self.history[: len(history)] != history:
                raise InputError(
                    f"state has other requests than {self._path}, the file of this budget; it can't take them back. "
                    "Was the file replaced?"
                )

    def _checked_history(self, state: Mapping[str, Any]) -> list[SpentRequest]:
        """The requests of a saved state of the same budget."""
        if isinstance(state, Mapping) and set(state) == {"epsilon", "delta", "history"}:
            raise InputError(
                "state must name its mechanism: it is of a version of excise that added requests up otherwise; spend "
                "the requests of its history again in a new accountant, or retrain."
            )
        _check_keys(state, ("mechanism", "epsilon", "delta", "history"), "state")
        named = state["mechanism"]
        require(named == _MECHANISM, "state['mechanism']", named, repr(_MECHANISM), "no other noise is accounted for")
        saved = BudgetAccountant(state["epsilon"], state["delta"])
        if saved.total != self.total:
            got, own = tuple(saved.total), tuple(self.total)
            raise InputError(f"state must be of this accountant's budget, {own}, not {got}; make one for {got}.")
        if not isinstance(state["history"], list):
            raise InputError(f"state['history'] must be a list of requests, not {state['history']!r}.")
        for index, entry in enumerate(state["history"]):
            name, keys = f"state['history'][{index}]", ("epsilon", "delta", "removed")
            known = isinstance(entry, Mapping) and "certified" in entry
            _check_keys(entry, (*keys, "certified") if known else keys, name)
            request = _request(**entry)
            if not saved._fits(request):
                raise InputError(f"state['history'][{index}] must fit into the budget, not {request!r}; was it edited?")
            saved._history.append(request)
        return saved._history

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread, nor another process where the budget is in a file."""
        with self._lock, contextlib.nullcontext() if self._path is None else locked(self._path):
            yield

    def _replace(self, history: list[SpentRequest]) -> None:
        if self._path is None:
            self._history = history
            return
        plain = [_plain(request) for request in history]
        write_budget(self._path, {"mechanism": _MECHANISM, **self.total._asdict(), "history": plain})

    def _require_room(self, request: SpentRequest) -> None:
        if self._fits(request):
            return
        left = self.remaining
        raise RetrainRequired(
            f"A request of epsilon={request.epsilon:g}, delta={request.delta:g} does not fit: "
            f"{len(self.history)} requests have left epsilon={left.epsilon:.4g}, delta={left.delta:.4g} of "
            f"{self.total.epsilon:g}, {self.total.delta:g}. Retrain without the forgotten samples and call reset(), or "
            "add more noise."
        )

    def _share(self) -> float:
        """Which share of the budget's μ² is spent."""
        return math.fsum(self._share_of(request) for request in self.history)

    def _share_of(self, request: SpentRequest) -> float:
        ratio = request.mu / self._mu
        return ratio * ratio

    def _fits(self, request: SpentRequest) -> bool:
        return self._share() + self._share_of(request) <= _ROUNDING

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # which itself can't be copied
            return {"total": self.total, "_history": list(self._history), "_mu": self._mu, "_path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())


def _plain(request: SpentRequest) -> dict[str, Any]:
    return {name: value for name, value in asdict(request).items() if value is not None}


def _request(epsilon: Any, delta: Any, removed: Any = 1, certified: Any = None) -> SpentRequest:
    eps, prob = number(epsilon, "epsilon"), number(delta, "delta", below=1)
    noiseless = "Gaussian noise leaves some δ at every ε"
    require(prob > 0 or eps == 0, "delta", delta, f"positive with epsilon={eps:g}", noiseless)
    found = None if certified is None else number(certified, "epsilon")
    if found is not None and found > eps * _ROUNDING:
        raise InputError(f"certified must be at most epsilon={eps:g}, not {found:g}; what was asked for does not hold.")
    return SpentRequest(eps, prob, count(removed, "removed"), found)


def _check_keys(entry: Any, keys: tuple[str, ...], name: str) -> None:
    if not isinstance(entry, Mapping) or set(entry) != set(keys):
        got = sorted(map(str, entry)) if isinstance(entry, Mapping) else type(entry).__name__
        raise InputError(f"{name} must be a mapping with keys {', '.join(keys)}, not {got}; was it saved by excise?")
