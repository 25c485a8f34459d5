"""``unfit`` and ``Unfitter``: what they take, what they refuse and how they say so, and what comes back."""

import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import BernoulliNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import check_estimator
from unfitting_oracle import KINDS, assert_same, ordinary

from excise import InputError, NeverSupportedError, NotYetSupportedError, Unfitter, unfit


class MyRidge(Ridge):
    """May fit in another way."""


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    return X, X @ [1.0, 2.0, 3.0] + rng.normal(size=40)


@pytest.fixture
def classes():
    rng = np.random.default_rng(0)
    return rng.poisson(2.0, size=(60, 5)), rng.choice(["a", "b", "c"], 60)


# ---- rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one row"),
        ([40], "40 are not rows of X; count them from 0 to 39"),
        ([-1], "-1 are not rows of X; .* also from the end"),
        ([3, 5, 3], "3 are named more than once"),
        (range(40), "no row would be left of the 40"),
        ([1.0], "positions in X, counted from 0, or a mask"),
        (["a"], "positions in X"),
        ([[1, 2]], r"shape \(1, 2\)"),
        (np.zeros(40, bool), "False everywhere"),
        (np.ones(39, bool), "has 40 rows, but it has 39"),
        (np.ones(40, bool), "no row would be left"),
        (range(100, 110), "100, 101, 102, 103, 104, … are not rows"),
    ],
)
def test_rows_that_are_wrong(data, rows, message):
    with pytest.raises(InputError, match=f"rows.*{message}"):
        unfit(Ridge().fit(*data), *data, rows)


@pytest.mark.parametrize("rows", [7, np.int8(7), [7], np.array([7], np.uint8), pd.Series([7]), np.arange(40) == 7])
def test_rows_in_any_form(data, rows):
    assert unfit(Ridge().fit(*data), *data, rows).rows.tolist() == [7]


def test_rows_that_are_gone_are_refused_and_nothing_is_half_done(data):
    unfitter = Unfitter(Ridge().fit(*data), *data)
    unfitter.unfit([4, 9])
    with pytest.raises(InputError, match="rows: 4, 9 are gone already"):
        unfitter.unfit([9, 4, 5])
    with pytest.raises(InputError, match="no row would be left"):
        unfitter.unfit(np.setdiff1d(np.arange(40), [4, 9]))
    assert unfitter.unfit([5]).gone.tolist() == [4, 5, 9]


def test_too_few_rows_for_the_estimator(classes):
    X, y = classes
    for estimator in (LinearDiscriminantAnalysis(), LinearDiscriminantAnalysis(solver="lsqr")):
        with pytest.raises(InputError, match=r"rows: without them 1 of 60 rows are left, on which Linear.*can't be"):
            unfit(estimator.fit(X, y), X, y, range(59))
    with pytest.raises(InputError, match="2 of 60 rows are left, on which PCA"):
        unfit(PCA(3).fit(X), X, rows=range(58))
    with pytest.raises(InputError, match="Number of priors must match"):
        unfit(GaussianNB(priors=[0.2, 0.3, 0.5]).fit(X, y), X, y, y == "a")


# ---- data


def test_other_data_are_noticed(data):
    X, y = data
    ridge = Ridge().fit(X, y)
    with pytest.raises(InputError, match=r"Ridge fitted on them differs from the estimator in coef_ .by a share of"):
        unfit(ridge, X * (1 + 1e-4), y, [0])
    with pytest.raises(InputError, match="differs from the estimator"):
        unfit(ridge, X, y + np.linspace(0, 1e-3, 40), [0])
    with pytest.raises(InputError, match="differs from the estimator"):
        unfit(ridge, X, y, [0], sample_weight=np.linspace(1, 2, 40))
    with pytest.raises(InputError, match=r"differs from the estimator in (coef_|n_features_in_)"):
        unfit(ridge, X[:, :2], y, [0])
    with pytest.raises(InputError, match="differs from the estimator in feature_names_in_"):
        unfit(Ridge().fit(pd.DataFrame(X, columns=list("abc")), y), X, y, [0])
    with pytest.raises(InputError, match="Ridge can't be fitted on them: Input X contains NaN"):
        unfit(ridge, np.where(X > 2, np.nan, X), y, [0])
    with pytest.raises(InputError, match="Ridge can't be fitted on them"):
        unfit(ridge, X, rows=[0])


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"Normalizer"}))
def test_other_data_are_noticed_by_all(name):
    problem = ordinary(name)
    X = problem.X.copy()
    if KINDS[name].holds == "categories":
        X %= 2
    else:
        X[7] = 2 * X[7] + 40
    with pytest.raises(InputError, match="fitted on them"):
        unfit(problem.fit(), X, problem.y, [0])


@pytest.mark.parametrize("thing", [None, 5, np.array(1.0), iter([1])], ids=["None", "5", "array", "iterator"])
def test_data_that_are_no_table(data, thing):
    with pytest.raises(InputError, match="X must be a table or a list"):
        unfit(Ridge().fit(*data), thing, data[1], [0])
    if thing is not None:
        with pytest.raises(InputError, match="y must be a table or a list"):
            unfit(Ridge().fit(*data), data[0], thing, [0])


def test_weights_that_are_no_numbers(data):
    with pytest.raises(InputError, match="sample_weight must be numeric"):
        unfit(Ridge().fit(*data), *data, [0], sample_weight=["heavy"] * 40)


def test_data_of_different_lengths(data):
    X, y = data
    with pytest.raises(InputError, match="y must have as many entries as X has rows, but it has 39 and X 40"):
        unfit(Ridge().fit(X, y), X, y[:-1], [0])
    with pytest.raises(InputError, match="sample_weight must have as many"):
        unfit(Ridge().fit(X, y), X, y, [0], sample_weight=np.ones(3))
    with pytest.raises(InputError, match=r"sample_weight must be one number for each row"):
        unfit(Ridge().fit(X, y), X, y, [0], sample_weight=np.ones((40, 1)))
    with pytest.raises(InputError, match=r"KNeighborsClassifier\.fit takes none"):
        unfit(KNeighborsClassifier().fit(X, y > 0), X, y > 0, [0], sample_weight=np.ones(40))


@pytest.mark.parametrize("tolerance", [0, -1, np.nan, "a"])
def test_a_tolerance_must_be_positive(data, tolerance):
    with pytest.raises(InputError, match="tolerance must be a positive number"):
        unfit(Ridge().fit(*data), *data, [0], tolerance=tolerance)


def test_lists_and_frames(data):
    X, y = data
    done = unfit(Ridge().fit(X.tolist(), y.tolist()), X.tolist(), y.tolist(), [0, 1])
    assert_same(done.estimator, Ridge().fit(X[2:], y[2:]))
    frame, series = pd.DataFrame(X, columns=list("abc")), pd.Series(y, index=range(100, 140))
    done = unfit(Ridge().fit(frame, series), frame, series, [0, 1])
    assert_same(done.estimator, Ridge().fit(frame[2:], series[2:]))


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix])
@pytest.mark.parametrize(
    "estimator",
    [
        Ridge(),
        LinearRegression(),
        RidgeClassifier(),
        MultinomialNB(),
        BernoulliNB(),
        ComplementNB(),
        StandardScaler(with_mean=False),
        KNeighborsClassifier(),
        KernelRidge(),
        PCA(2, random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_sparse_tables(classes, form, estimator):
    X, y = classes[0], (classes[1] == "a").astype(float)
    table = form(X.astype(float))
    done = unfit(clone(estimator).fit(table, y), table, y, [1, 3, 20])
    stay = np.setdiff1d(np.arange(60), [1, 3, 20])
    fresh = clone(estimator).fit(form(X[stay].astype(float)), y[stay])
    for name in ("coef_", "feature_log_prob_", "scale_", "var_", "mean_", "n_samples_seen_", "dual_coef_"):
        if hasattr(fresh, name):
            assert_same(getattr(done.estimator, name), getattr(fresh, name), name)
    new = table.tocsr()[:5]
    use = "predict" if hasattr(fresh, "predict") else "transform"
    assert_same(getattr(done.estimator, use)(new), getattr(fresh, use)(new), tolerance=1e-7)


def test_sparse_gaps_and_weights():
    rng = np.random.default_rng(0)
    X = rng.poisson(1.0, (50, 4)).astype(float)
    X[rng.uniform(size=X.shape) < 0.1] = np.nan
    weights = rng.uniform(1, 2, 50)
    table, stay = sparse.csr_array(X), np.arange(10, 50)
    scaler = StandardScaler(with_mean=False)
    done = unfit(clone(scaler).fit(table, sample_weight=weights), table, rows=range(10), sample_weight=weights)
    assert done.words.startswith("Computed")
    assert_same(done.estimator, clone(scaler).fit(table[stay], sample_weight=weights[stay]))


@pytest.mark.parametrize("estimator", [Ridge(), LinearRegression(), GaussianNB(), PCA(2), StandardScaler()], ids=str)
def test_single_precision_is_kept(data, estimator):
    X, y = data[0].astype(np.float32), (data[1] > 0).astype(int)
    done = unfit(clone(estimator).fit(X, y), X, y, [1, 3])
    assert_same(done.estimator, clone(estimator).fit(np.delete(X, [1, 3], axis=0), np.delete(y, [1, 3])))
    assert "float32" in done.words


def test_columns_that_depend_on_each_other_and_more_columns_than_rows(data):
    X, y = data
    double = np.column_stack([X, X[:, 0]])
    assert_same(
        unfit(LinearRegression().fit(double, y), double, y, [0]).estimator, LinearRegression().fit(double[1:], y[1:])
    )
    wide = np.random.default_rng(0).normal(size=(10, 20))
    for estimator in (LinearRegression(), Ridge(), RidgeClassifier()):
        target = y[:10] > 0 if isinstance(estimator, RidgeClassifier) else y[:10]
        done = unfit(clone(estimator).fit(wide, target), wide, target, [0])
        assert_same(done.estimator, clone(estimator).fit(wide[1:], target[1:]))


def test_a_row_that_makes_up_nearly_all_of_the_sums_leaves_no_trace(data):
    X, y = data[0].copy(), data[1].copy()
    X[5], y[5] = 1e9, 1e9
    for estimator in (LinearRegression(), Ridge(), StandardScaler(), PCA(svd_solver="full")):
        done = unfit(clone(estimator).fit(X, y), X, y, [5])
        assert_same(done.estimator, clone(estimator).fit(np.delete(X, 5, axis=0), np.delete(y, 5)), tolerance=1e-11)


def test_several_labels_and_weights_of_zero_and_below(data):
    X, _ = data
    labels = (X[:, :2] > 0).astype(int)
    done = unfit(RidgeClassifier().fit(X, labels), X, labels, [2])
    assert_same(done.estimator, RidgeClassifier().fit(np.delete(X, 2, axis=0), np.delete(labels, 2, axis=0)))
    weights = np.ones(40)
    weights[:20] = 0
    done = unfit(Ridge().fit(X, data[1], weights), X, data[1], [30], sample_weight=weights)
    assert_same(done.estimator, Ridge().fit(np.delete(X, 30, axis=0), np.delete(data[1], 30), np.delete(weights, 30)))


@pytest.mark.parametrize("estimator", [MultinomialNB(), GaussianNB(), StandardScaler()], ids=str)
def test_no_weight_is_left(classes, estimator):
    X, y = classes
    weights = np.zeros(60)
    weights[5] = 1.0
    with pytest.raises(InputError, match="at least one non-zero"):
        unfit(estimator.fit(X, y, sample_weight=weights), X, y, [5], sample_weight=weights)


def test_class_weights_by_name(classes):
    X, y = classes
    estimator = RidgeClassifier(class_weight={"a": 2.0, "b": 0.5, "c": 1.0})
    for rows in ([0, 1], np.flatnonzero(y == "a")):
        stay = np.setdiff1d(np.arange(60), rows)
        fresh = clone(estimator).fit(X[stay], y[stay])
        assert_same(unfit(clone(estimator).fit(X, y), X, y, rows).estimator, fresh)


def test_a_scaler_counts_rows_once_where_none_has_gaps(data):
    done = unfit(StandardScaler().fit(data[0]), data[0], rows=[0])
    assert done.words.startswith("Computed in closed form")
    assert done.estimator.n_samples_seen_ == 39


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], "nearly the same variance"),
        ([[1.0, 1.0], [0.5, -0.5]], "the sign of a component could be either"),
        ([[1.0, 1.0], [2.0, 2.0]], "nearly no variance"),
    ],
)
def test_components_that_rounding_could_turn_are_left_to_fit(axes, why):
    X = np.vstack([[[3.0, 1.0]], *([axes, np.negative(axes)] * 5)])  # without the first row there is a tie
    done = unfit(PCA(2).fit(X), X, rows=[0])
    assert why in done.words
    assert_same(done.estimator, PCA(2).fit(X[1:]))


def test_hyperparameters_of_a_kernel_are_learned_anew(data):
    X, y = data
    process = GaussianProcessRegressor(RBF() + WhiteKernel())
    done = unfit(clone(process).fit(X, y), X, y, [0, 1, 2])
    assert_same(done.estimator, clone(process).fit(X[3:], y[3:]))
    assert "hyperparameters of its kernel were learned from all" in done.words


@pytest.mark.parametrize("estimator", [LinearDiscriminantAnalysis(), QuadraticDiscriminantAnalysis()], ids=str)
def test_axes_that_another_machine_turned_round_are_the_same(data, estimator):
    X, y = data[0], (data[1] > 0).astype(int)
    elsewhere = clone(estimator).fit(X, y)
    axes = elsewhere.rotations_[0] if hasattr(elsewhere, "rotations_") else elsewhere.scalings_
    axes *= -1
    assert_same(unfit(elsewhere, X, y, [0]).estimator, clone(estimator).fit(X[1:], y[1:]))


# ---- estimators


def test_an_estimator_that_is_not_fitted(data):
    with pytest.raises(InputError, match=r"estimator: this Ridge is not fitted; call fit"):
        unfit(Ridge(), *data, [0])


@pytest.mark.parametrize("thing", [Ridge, "ridge", None, object()])
def test_what_is_no_estimator(data, thing):
    with pytest.raises(InputError, match="estimator must be a fitted scikit-learn estimator, not"):
        unfit(thing, *data, [0])


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (DecisionTreeRegressor(), "every split.*fit it anew on the other rows"),
        (RandomForestRegressor(2), "all rows.*fit it anew"),
        (GradientBoostingRegressor(n_estimators=2), "all rows.*fit it anew"),
        (HistGradientBoostingRegressor(max_iter=2), "fit it anew"),
        (MLPRegressor(hidden_layer_sizes=2, max_iter=1), "many minima.*excise.Unlearner"),
        (GridSearchCV(Ridge(), {"alpha": [1, 2]}), "best_estimator_"),
        (LinearRegression(positive=True), "positive=True"),
        (Ridge(positive=True), "positive=True"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_never_supported_says_why_and_what_instead(data, estimator, message):
    with pytest.raises(NeverSupportedError, match=message):
        unfit(estimator.fit(*data), *data, [0])


def test_what_is_not_known_lists_what_is(data):
    X, y = data
    with pytest.raises(NotYetSupportedError, match=r"SVC is not known; .*GaussianNB.*Ridge"):
        unfit(SVC().fit(X, y > 0), X, y > 0, [0])
    with pytest.raises(NotYetSupportedError, match="MyRidge is a subclass of Ridge, and may fit in another way"):
        unfit(MyRidge().fit(X, y), X, y, [0])
    with pytest.raises(NotYetSupportedError, match="precomputed"):
        unfit(KernelRidge(kernel="precomputed").fit(X @ X.T, y), X @ X.T, y, [0])


@pytest.mark.parametrize(
    "estimator",
    [
        PCA(1, svd_solver="randomized"),
        TruncatedSVD(1),
        Ridge(solver="sag"),
        GaussianProcessRegressor(RBF(), n_restarts_optimizer=1),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_draws_at_random_needs_a_seed(data, estimator):
    X, y = data
    with pytest.raises(InputError, match="no fit gives the same twice; give it a random_state"):
        unfit(clone(estimator).fit(X, y), X, y, [0])
    seeded = clone(estimator).set_params(random_state=3)
    assert_same(unfit(clone(seeded).fit(X, y), X, y, [0]).estimator, clone(seeded).fit(X[1:], y[1:]))


# ---- what comes back


@pytest.mark.parametrize("name", KINDS)
def test_what_comes_back_pickles_clones_and_fits_as_before(name):
    problem = ordinary(name)
    back = unfit(problem.fit(), problem.X, problem.y, problem.rows).estimator
    assert_same(pickle.loads(pickle.dumps(back)), back, tolerance=0)
    assert_same(clone(back), clone(problem.estimator))
    assert_same(clone(back).fit(problem.X, problem.y), problem.fit())
    use = "predict" if hasattr(back, "predict") else "transform"
    fresh = problem.fit(problem.rows)
    if KINDS[name].holds != "categories":
        assert_same(getattr(back, use)(problem.X[:20]), getattr(fresh, use)(problem.X[:20]))


def test_settings_of_the_output_are_kept(data):
    X = pd.DataFrame(data[0], columns=list("abc"))
    scaler = StandardScaler().set_output(transform="pandas").fit(X)
    assert unfit(scaler, X, rows=[0]).estimator.transform(X).columns.tolist() == list("abc")


def test_the_outcome_is_frozen(data):
    done = unfit(Ridge().fit(*data), *data, [3])
    with pytest.raises(dataclasses.FrozenInstanceError):
        done.bound = 1.0
    assert done.moved == pytest.approx(
        np.hypot(
            np.linalg.norm(done.estimator.coef_ - Ridge().fit(*data).coef_),
            done.estimator.intercept_ - Ridge().fit(*data).intercept_,
        )
    )
    assert dataclasses.replace(done, bound=done.moved / 4).share_left == pytest.approx(0.25)
    assert dataclasses.replace(done, bound=1.0, moved=0.0).share_left == np.inf


def test_preparing_twice_does_no_harm(data):
    unfitter = Unfitter(Ridge().fit(*data), *data).prepare().prepare()
    assert unfitter.unfit([0]).gone.tolist() == [0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Ridge", "RidgeClassifier", "GaussianNB", "PCA", "StandardScaler"])
@pytest.mark.filterwarnings("ignore")
def test_it_passes_the_checks_of_scikit_learn_that_the_original_does(name):
    problem = ordinary(name)
    original = problem.fit()
    back = unfit(original, problem.X, problem.y, problem.rows).estimator

    def outcomes(estimator):
        found = check_estimator(estimator, on_fail=None, on_skip=None)
        return {(one["check_name"], one["status"]) for one in found}

    assert outcomes(back) == outcomes(original)
