"""``Pipeline``, ``ColumnTransformer`` and ``FeatureUnion``: the whole as it would have been without the rows.

A row that goes changes the first step, and by it what all other rows are for the second. So the first step is kept on
the data; each later one is made for a request, on the other rows as the new steps before it give them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from excise.errors import InputError, NotYetSupportedError
from excise.estimators.kept import NO_ROWS, Data, Kept, Options, Refit, Rows, find_way, way_for
from excise.estimators.refitting import Again, on_its_data
from excise.estimators.refusals import check_estimator

NOTHING = (None, "passthrough", "drop")


def keep(estimator: Any, data: Data, options: Options) -> Kept:
    """Keep an estimator of any kind that has a way, whose parts have one too."""
    check_estimator(estimator)
    way = find_way(estimator)
    assert way is not None  # else it was refused
    return way(estimator, data, options)


@dataclass(frozen=True)
class KeptPipeline:
    """A pipeline with its first step kept."""

    pipeline: Any
    data: Data
    options: Options
    first: Kept

    def without(self, gone: Rows, last: Any = None) -> Refit:
        """Refit one step after the other."""
        new = clone(self.pipeline)
        rest = self.data.without(gone)
        refits: dict[str, Refit] = {}
        for place, step in _steps(self.pipeline):
            before = None if last is None else last.steps[place][1]
            if refits:
                kept = keep(step, rest, replace(self.options, trusted=True))
                refit = kept.without(NO_ROWS, before)
            else:
                refit = self.first.without(gone, before)
            name = self.pipeline.steps[place][0]
            refits[name] = refit
            new.steps[place] = (name, refit.estimator)
            if place + 1 < len(new.steps):
                rest = replace(rest, X=refit.estimator.transform(rest.X))
        return _whole(new, refits)


@way_for(Pipeline)
def keep_pipeline(pipeline: Any, data: Data, options: Options) -> Kept:
    """Look at each step with what it was fitted on, and keep the first."""
    if getattr(pipeline, "transform_input", None) is not None:
        raise NotYetSupportedError("estimator: a Pipeline with transform_input; fit it without.")
    steps = list(_steps(pipeline))
    if not steps:
        raise InputError("estimator: the Pipeline has no step that learns anything, and so nothing to take out.")
    first = keep(steps[0][1], data, options)
    if not options.trusted and len(steps) > 1:
        seen = data.without(NO_ROWS)  # a copy, since a step may write into what it is given
        for (_, before), (_, step) in pairwise(steps):
            seen = replace(seen, X=before.transform(seen.X))
            keep(step, seen, options)
    return KeptPipeline(pipeline, data, options, first)


@way_for(ColumnTransformer, FeatureUnion)
def keep_side_by_side(estimator: Any, data: Data, options: Options) -> Kept:
    """Fit anew: to fit its parts costs about as much as to apply them, which any later step asks for anyway."""
    for part in _parts(estimator):
        check_estimator(part)
    kept = Again(estimator, data, "its parts cost as much to apply as to fit")
    return kept if options.trusted else on_its_data(kept, estimator, data)


def _steps(pipeline: Any) -> Iterator[tuple[int, Any]]:
    """Places and steps that do something."""
    return ((place, step) for place, (_, step) in enumerate(pipeline.steps) if step not in NOTHING)


def _parts(estimator: Any) -> Iterator[Any]:
    """All estimators inside one, however deep."""
    parts: list[Any] = []
    if isinstance(estimator, Pipeline):
        parts = [step for _, step in estimator.steps]
    elif isinstance(estimator, ColumnTransformer):
        parts = [part for _, part, _ in estimator.transformers_]
    elif isinstance(estimator, FeatureUnion):
        parts = [part for _, part in estimator.transformer_list]
    for part in parts:
        if not isinstance(part, str | None):
            yield part
            yield from _parts(part)


def _whole(new: Any, refits: dict[str, Refit]) -> Refit:
    """What the refits of steps come to; a bound before the last step says nothing about those after it."""
    *before, last = refits.values()
    bound = math.inf if any(one.bound for one in before) else last.bound
    moved = math.hypot(*(one.moved for one in refits.values()))
    return Refit(new, bound, moved, " ".join(f"{name}: {refit.words}" for name, refit in refits.items()))
