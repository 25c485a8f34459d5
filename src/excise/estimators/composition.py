"""``Pipeline``, ``ColumnTransformer`` and ``FeatureUnion``: the whole as it would have been without the rows.

A row that goes changes the first step, and by it what all other rows are for the second. So all steps but the last are
fitted anew, which costs about as much as to apply them; the last goes its own way, on what the new steps give. That way
it gets bit for bit what a fresh fit would give it, which counts where rounding decides, as about the sign of an axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from excise.errors import InputError, NotYetSupportedError
from excise.estimators.comparing import distance, first_difference
from excise.estimators.kept import NO_ROWS, Data, Kept, Options, Refit, Rows, find_way, way_for
from excise.estimators.refitting import SAME, Again, fit_can_fail, on_its_data, refuse_other_data
from excise.estimators.refusals import check_estimator

NOTHING = (None, "passthrough", "drop")


def keep(estimator: Any, data: Data, options: Options) -> Kept:
    """Keep an estimator of any kind that has a way, if its parts have one too."""
    check_estimator(estimator)
    for part in _parts(estimator):
        check_estimator(part)
    way = find_way(estimator)
    assert way is not None  # else it was refused
    return way(estimator, data, options)


@dataclass(frozen=True)
class KeptPipeline:
    """A pipeline of several steps."""

    pipeline: Any
    data: Data
    options: Options

    def without(self, gone: Rows, last: Any = None) -> Refit:
        """Fit the steps before the last anew, and go on with that."""
        before = self.pipeline if last is None else last
        new, seen = _head_fitted(self.pipeline, self.data, gone)
        words = "The steps before the last: Fitted anew on the other rows: exact."
        end = self.pipeline.steps[-1][1]
        if end in NOTHING:
            return Refit(new, 0.0, distance(new, before), words)
        refit = keep(end, seen, replace(self.options, trusted=True)).without(NO_ROWS, _end(last))
        return replace(_with_end(new, refit), words=f"{words} The last: {refit.words}")


@dataclass(frozen=True)
class KeptEnd:
    """A pipeline of which only the last step does anything."""

    pipeline: Any
    end: Kept

    def without(self, gone: Rows, last: Any = None) -> Refit:
        """Leave all to the last step."""
        return _with_end(clone(self.pipeline), self.end.without(gone, _end(last)))


@way_for(Pipeline)
def keep_pipeline(pipeline: Any, data: Data, options: Options) -> Kept:
    """Look at each step with what it was fitted on, unless the data are trusted."""
    if getattr(pipeline, "transform_input", None) is not None:
        raise NotYetSupportedError("estimator: a Pipeline with transform_input; fit one without.")
    *head, end = [step for _, step in pipeline.steps]
    if all(step in NOTHING for step in head):
        if end in NOTHING:
            raise InputError("estimator: the Pipeline has no step that does anything, and so nothing to take out.")
        return KeptEnd(pipeline, keep(end, data, options))
    if not options.trusted:
        again, seen = _head_fitted(pipeline, data, NO_ROWS)
        for step, same in zip(head, again.steps, strict=False):
            if step not in NOTHING:
                refuse_other_data(step, first_difference(same[1], step, SAME))
        if end not in NOTHING:
            keep(end, seen, options)
    return KeptPipeline(pipeline, data, options)


@way_for(ColumnTransformer, FeatureUnion)
def keep_side_by_side(estimator: Any, data: Data, options: Options) -> Kept:
    """Fit anew: what comes next needs all rows through all parts anyway."""
    kept = Again(estimator, data, "its parts cost as much to apply as to fit")
    return kept if options.trusted else on_its_data(kept, estimator, data)


def _head_fitted(pipeline: Any, data: Data, gone: Rows) -> tuple[Any, Data]:
    """A copy whose steps before the last are fitted on the other rows, and what these give for the last."""
    new = clone(pipeline)
    rest = data.without(gone)
    head = Pipeline(new.steps[:-1])  # it has no memory
    with fit_can_fail(pipeline, rest, gone):
        seen = head.fit_transform(rest.X, rest.y)
    new.steps[:-1] = head.steps
    return new, replace(rest, X=seen)


def _end(pipeline: Any) -> Any:
    """The last step, if there is a pipeline."""
    return None if pipeline is None else pipeline.steps[-1][1]


def _with_end(new: Any, refit: Refit) -> Refit:
    """The pipeline with its last step as it is now."""
    new.steps[-1] = (new.steps[-1][0], refit.estimator)
    return replace(refit, estimator=new)


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
