"""``OneVsRestClassifier``: an estimator for each class, each kept by itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import LabelBinarizer

from excise.errors import InputError, NotYetSupportedError
from excise.estimators.kept import Data, Kept, Options, Refit, Rows, find_way, way_for
from excise.estimators.newton.reading import read_labels


@dataclass(frozen=True)
class KeptOneVsRest:
    """Estimators of classes, with their data."""

    whole: Any
    labels: Any
    classes: Any
    """That the parts are of: the second alone if there are two."""
    parts: Sequence[Kept]

    def without(self, gone: Rows, last: Any = None) -> Refit:
        """Each part by itself; a class that is gone takes its part along."""
        left = np.delete(self.labels, gone)
        binarizer = LabelBinarizer(sparse_output=True).fit(left)
        classes = binarizer.classes_
        if len(classes) < 2:
            raise InputError(
                f"rows leave only the class {classes[0]!r}, and no classifier can be fitted on one; leave rows of "
                "another."
            )
        before = self.whole if last is None else last
        refits = [
            self.parts[int(np.searchsorted(self.classes, one))].without(gone, last and _part(last, one))
            for one in _positive(classes)
        ]
        new = copy.copy(self.whole)
        new.estimators_ = [refit.estimator for refit in refits]
        new.label_binarizer_, new.classes_ = binarizer, classes
        same = np.array_equal(before.classes_, classes)
        moved = math.hypot(*(refit.moved for refit in refits)) if same else math.nan
        words = " ".join(f"{one}: {refit.words}" for one, refit in zip(_positive(classes), refits, strict=True))
        return Refit(new, math.hypot(*(refit.bound for refit in refits)), moved, words)


@way_for(OneVsRestClassifier)
def keep_one_vs_rest(estimator: Any, data: Data, options: Options) -> Kept:
    """Keep each class's estimator on the labels that it sees."""
    if estimator.multilabel_:
        raise NotYetSupportedError(
            "estimator: a OneVsRestClassifier of several labels for a row; unfit its estimators_ one by one, each with "
            "a column of y."
        )
    labels = read_labels(estimator, data, options)
    classes = _positive(np.unique(labels))
    parts = []
    for one in classes:
        part = _part(estimator, one)
        if (way := find_way(part)) is None:
            raise NotYetSupportedError(f"estimator: a OneVsRestClassifier of {type(part).__name__}, which has no way.")
        parts.append(way(part, Data(data.X, (labels == one).astype(int), data.sample_weight), options))
    return KeptOneVsRest(estimator, labels, classes, parts)


def _positive(classes: Any) -> Any:
    """Those that have an estimator."""
    return classes[1:] if len(classes) == 2 else classes


def _part(whole: Any, one: Any) -> Any:
    """The estimator of a class, or None where there is none for it."""
    found = np.flatnonzero(_positive(whole.classes_) == one)
    return whole.estimators_[int(found[0])] if len(found) else None
