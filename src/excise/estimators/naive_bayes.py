"""``MultinomialNB``, ``BernoulliNB`` and ``ComplementNB``: counts of columns in each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.naive_bayes import BernoulliNB, ComplementNB, MultinomialNB
from sklearn.preprocessing import binarize
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_array, check_non_negative

from excise.estimators.algebra import LeftToFit, Solve, blank, by_algebra
from excise.estimators.classes import labels_of
from excise.estimators.kept import Data, Floats, Rows
from excise.estimators.sums import Sums, leaf_rows


@dataclass(frozen=True)
class Counts:
    """Of a set of rows."""

    rows: Floats
    """How many there are of each class."""
    classes: Floats
    """Their weights."""
    columns: Floats
    """Classes × columns."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.rows + other.rows, self.classes + other.classes, self.columns + other.columns)


@by_algebra(MultinomialNB, BernoulliNB, ComplementNB)
def keep_naive_bayes(estimator: Any, data: Data) -> Solve:
    """The probabilities follow from the counts as in ``fit``, by the estimator's own methods."""
    X = check_array(data.X, accept_sparse="csr")
    if not isinstance(estimator, BernoulliNB):
        check_non_negative(X, type(estimator).__name__)
    elif estimator.binarize is not None:
        X = binarize(X, threshold=estimator.binarize)
    known, codes = labels_of(data.y)
    member = codes[:, None] == np.arange(len(known))
    weights = np.ones(len(data)) if data.sample_weight is None else data.sample_weight

    def summary(rows: Rows) -> Counts:
        here = member[rows]
        Y = here * weights[rows][:, None]
        columns = safe_sparse_dot(Y.T, X[rows], dense_output=True)
        return Counts(here.sum(axis=0), Y.sum(axis=0), np.asarray(columns, dtype=np.float64))

    cells = (X.nnz if sparse.issparse(X) else X.size) / len(data)
    sums = Sums(np.arange(len(data)), summary, leaf_rows(len(known) * X.shape[1], cells))

    def without(gone: Rows) -> Any:
        counts = sums.without(gone)
        if counts is None:
            raise LeftToFit("no rows are left")
        left = counts.rows > 0
        if estimator.class_prior is not None and not np.all(left):
            raise LeftToFit("a class that has a prior is gone")
        new = blank(estimator, data)
        new.classes_ = known[left]
        new.class_count_, new.feature_count_ = counts.classes[left], counts.columns[left]
        if isinstance(estimator, ComplementNB):
            new.feature_all_ = new.feature_count_.sum(axis=0)
        new._update_feature_log_prob(new._check_alpha())
        new._update_class_log_prior(class_prior=estimator.class_prior)
        return new

    return without
