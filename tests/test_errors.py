"""Every bad input is met with an error that names the argument, the value and the remedy."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from excise import ExciseError, FOCISelector, InputError, UndefinedWarning, codec, codec_test, foci, lcodec, lfoci, xi

rng = np.random.default_rng(0)
X = rng.standard_normal((20, 3))
y = X[:, 0] ** 2
with_nan = np.where(np.arange(60).reshape(20, 3) == 7, np.nan, X)
with_inf = np.where(np.arange(60).reshape(20, 3) == 7, np.inf, X)
constant = np.column_stack((X, np.full(20, 3.5)))

CASES = [
    (lambda: codec(y, with_nan), r"z contains nan \(row 2, column 1; 1 such"),
    (lambda: codec(with_inf[:, 1], X), r"y contains inf \(row 2;"),
    (lambda: foci(pd.DataFrame(with_nan, columns=list("abc")), y), r"X contains nan \(row 2, column b"),
    (lambda: xi(X[:, 0], y[:-1]), "same number of rows, but x has 20, y has 19"),
    (lambda: codec(y, X[:, 0], X[:5]), "y has 20, z has 20, x has 5"),
    (lambda: foci(X[:10], y), "X has 10, y has 20"),
    (lambda: xi([1, 2], [1, 2]), "x has 2 rows; at least 3"),
    (lambda: foci(X[:2], y[:2]), "X has 2 rows; at least 3"),
    (lambda: codec(y, X[:, :0]), "z has no columns"),
    (lambda: codec(y, X[:, 0], X[:, :0]), "x has no columns"),
    (lambda: foci(X[:, :0], y), "X has no columns"),
    (lambda: foci(constant, y), r"constant column, 3, whose value is always 3.5.*standardize=False"),
    (lambda: foci(pd.DataFrame(constant, columns=list("abcd")), y), "constant column, 'd'"),
    (lambda: codec(["a", "b", "c"], [1, 2, 3]), "y must be numeric, not <U1; encode"),
    (lambda: foci(pd.DataFrame({"a": list("xyz"), "b": [1, 2, 3]}), [1, 2, 3]), r"X contains text \('x'\)"),
    (lambda: codec(y, X + 1j), "z is complex"),
    (lambda: codec(y, np.array([1j, 2, 3], dtype=object)), "complex number"),
    (lambda: foci(X, np.column_stack((y, y))), r"y must be one column, but has shape \(20, 2\)"),
    (lambda: codec(y, X[None]), r"z must be rows × columns, but has shape \(1, 20, 3\)"),
    (lambda: codec([[1, 2], [3]], [1, 2]), "y has rows of unequal length"),
    (lambda: foci(scipy.sparse.csr_matrix(X), y), r"X is a sparse matrix; pass X.toarray\(\)"),
    (lambda: foci(np.ma.masked_greater(X, 1), y), "X has masked entries"),
    (lambda: foci(pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64")}), [1, 2, 3]), "X contains nan"),
    (
        lambda: codec(np.array(["2020-01-01"] * 3, dtype="M8[D]"), [1, 2, 3]),
        "y must be numeric",
    ),
    (lambda: codec([object(), object(), object()], [1, 2, 3]), "y must be numeric, but contains object"),
    (lambda: foci(X, y, max_features=0), r"max_features must be from 1 to 3.*not 0"),
    (lambda: foci(X, y, max_features=4), "max_features must be from 1 to 3"),
    (lambda: foci(X, y, max_features=1.5), "not 1.5"),
    (lambda: foci(X, y, max_features=True), "not True"),
    (lambda: foci(X, y, n_jobs=0), "n_jobs must be a positive integer"),
    (lambda: foci(X, y, method="cheep"), "method must be one of 'full', 'cheap', not 'cheep'. Did you mean 'cheap'"),
    (lambda: foci(X, y, random_state="seed"), "random_state must be None, a non-negative integer"),
    (lambda: codec(y, X, random_state=-1), "random_state .* not -1"),
    (lambda: lcodec(y, X, noise=-0.1), "noise must be None or a non-negative number, not -0.1"),
    (lambda: lcodec(y, X, noise="big"), "noise must be"),
    (lambda: lcodec(y, X, noise=float("nan")), "noise must be"),
    (lambda: lfoci(X, y, perturb="al"), "perturb must be one of .* Did you mean 'all'"),
    (lambda: lcodec(y, X, noise=1.7e308), "noise=1.7e[+]308 makes some values infinite"),
    (lambda: codec(y, torch.eye(20).to_sparse()), "z is a torch.sparse_coo tensor"),
    (lambda: codec(y, torch.empty(20, device="meta")), "z is a torch.strided tensor on meta"),
    (lambda: FOCISelector(max_features="x").fit(X, y), "max_features must be from 1 to 3"),
    (lambda: codec_test(y, X, n_permutations=0), "n_permutations must be a positive integer, not 0"),
]


@pytest.mark.parametrize(("call", "message"), CASES)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_every_error_is_an_excise_error_and_a_value_error():
    assert issubclass(InputError, ExciseError)
    assert issubclass(InputError, ValueError)


def test_constant_column_without_standardize_is_never_chosen():
    assert 3 not in foci(constant, y, standardize=False).indices


@pytest.mark.parametrize(
    "call",
    [
        lambda: xi(X[:, 0], np.ones(20)),
        lambda: codec(np.ones(20), X),
        lambda: codec(np.ones(20), X[:, 0], X[:, 1]),
        lambda: lcodec(np.ones(20), X),
        lambda: codec_test(np.ones(20), X).statistic,
        lambda: codec_test(np.ones(20), X).pvalue,
    ],
)
def test_constant_y_is_nan_with_a_warning(call):
    with pytest.warns(UndefinedWarning, match="y is constant"):
        assert np.isnan(call())


def test_constant_y_selects_nothing_with_a_warning():
    with pytest.warns(UndefinedWarning, match="none is chosen"):
        assert len(foci(X, np.ones(20))) == 0


def test_y_that_x_determines_is_nan_with_a_warning():
    x = np.repeat(np.arange(5), 4)
    with pytest.warns(UndefinedWarning, match="x determines y"):
        assert np.isnan(codec(x, X[:, 0], x))


def test_the_test_of_something_undefined_is_nan_with_one_warning():
    x = np.repeat(np.arange(5), 4)
    with pytest.warns(UndefinedWarning, match="x determines y") as caught:
        found = codec_test(x, X[:, 0], x)
    assert np.isnan([found.statistic, found.pvalue]).all()
    assert len(caught) == 1


def test_warnings_point_to_the_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        xi(X[:, 0], np.ones(20))
        codec(np.ones(20), X)
        lcodec(np.ones(20), X)
        codec_test(np.ones(20), X)
        foci(X, np.ones(20))
        lfoci(X, np.ones(20))
    assert {warning.filename for warning in caught} == {__file__}
