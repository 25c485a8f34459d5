"""Pipelines and the like: the whole equals one that was fitted anew."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, Ridge, RidgeClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    StandardScaler,
    TargetEncoder,
)
from unfitting_oracle import assert_same, frozen

from excise import InputError, NeverSupportedError, NotYetSupportedError, Unfitter, unfit

ROWS = [0, 7, 11, 50]


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    n = 80
    X = pd.DataFrame({"age": rng.normal(40, 10, n), "pay": rng.lognormal(3, 1, n), "town": rng.choice(["A", "B"], n)})
    X.loc[0, "town"] = "only here"
    X.loc[3, "pay"] = np.nan
    X["kept"] = rng.normal(size=n)
    return X, pd.Series(rng.integers(0, 3, n))


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 4)) * [1, 2, 4, 8] + 3
    return X, rng.integers(0, 3, 120)


def numbers():
    return make_pipeline(SimpleImputer(), StandardScaler())


def columns(**options):
    return make_column_transformer((numbers(), ["age", "pay"]), (OneHotEncoder(), ["town"]), **options)


def assert_as_fitted_anew(pipeline, X, y, rows=ROWS):
    """Compare all attributes with those of a fresh fit, and check that nothing that was given has changed."""
    fitted = pipeline.fit(X, y)
    before = frozen(fitted, X, y)
    done = unfit(fitted, X, y, rows)
    assert frozen(fitted, X, y) == before
    stay = np.setdiff1d(np.arange(len(y)), rows)
    fresh = clone(pipeline).fit(take(X, stay), take(y, stay))
    assert_same(done.estimator, fresh)
    assert done.bound == 0
    return done


def take(values, rows):
    if isinstance(values, list):
        return [values[row] for row in rows]
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


@pytest.mark.parametrize(
    "last",
    [
        Ridge(),
        LinearRegression(),
        RidgeClassifier(),
        GaussianNB(),
        LinearDiscriminantAnalysis(),
        KNeighborsClassifier(),
    ],
    ids=lambda last: type(last).__name__,
)
def test_a_scaler_before_a_model(arrays, last):
    done = assert_as_fitted_anew(make_pipeline(StandardScaler(), last), *arrays)
    assert done.words.startswith("The steps before the last: Fitted anew")


@pytest.mark.parametrize("memory", [None, "folder"])
def test_three_steps_of_which_one_does_nothing(arrays, memory, tmp_path):
    steps = [("scale", StandardScaler()), ("nothing", "passthrough"), ("axes", PCA(2)), ("model", Ridge())]
    assert_as_fitted_anew(Pipeline(steps, memory=memory and str(tmp_path)), *arrays)


@pytest.mark.parametrize("first", ["passthrough", FunctionTransformer(np.abs), Normalizer()], ids=str)
def test_a_first_step_that_learns_nothing(arrays, first):
    assert_as_fitted_anew(Pipeline([("first", first), ("model", Ridge())]), *arrays)


def test_only_the_last_step_does_anything(arrays):
    done = assert_as_fitted_anew(Pipeline([("no", "passthrough"), ("model", Ridge())]), *arrays)
    assert done.words.startswith("Computed in closed form")


def test_a_pipeline_that_ends_with_a_transformer(arrays):
    assert_as_fitted_anew(make_pipeline(StandardScaler(), PCA(2)), *arrays)
    assert_as_fitted_anew(Pipeline([("scale", StandardScaler()), ("end", "passthrough")]), *arrays)


@pytest.mark.parametrize("remainder", ["drop", "passthrough", MinMaxScaler()], ids=str)
@pytest.mark.parametrize("last", [Ridge(), RidgeClassifier()], ids=["Ridge", "RidgeClassifier"])
def test_columns_of_a_frame(frame, remainder, last):
    done = assert_as_fitted_anew(make_pipeline(columns(remainder=remainder), last), *frame)
    categories = done.estimator[0].named_transformers_["onehotencoder"].categories_[0]
    assert categories.tolist() == ["A", "B"]  # the town of row 0 alone is gone
    assert done.estimator.predict(frame[0].iloc[1:]).shape == (79,)


def test_columns_alone_and_nested(frame):
    X, y = frame
    assert_as_fitted_anew(columns(), X, y)
    inner = make_pipeline(columns(remainder="passthrough"), StandardScaler())
    assert_as_fitted_anew(make_pipeline(inner, make_union(PCA(2), StandardScaler()), GaussianNB()), X, y)


def test_columns_that_are_dropped(frame):
    parts = [("no", "drop", ["age"]), ("as it is", "passthrough", ["kept"]), ("town", OneHotEncoder(), ["town"])]
    assert_as_fitted_anew(make_pipeline(ColumnTransformer(parts), Ridge()), *frame)


def test_names_of_columns_go_through(frame):
    pipeline = make_pipeline(columns(), StandardScaler(), Ridge()).set_output(transform="pandas")
    pipeline.set_params(columntransformer__onehotencoder__sparse_output=False)
    done = assert_as_fitted_anew(pipeline, *frame)
    assert "onehotencoder__town_A" in done.estimator[-1].feature_names_in_.tolist()


def test_side_by_side(arrays):
    union = FeatureUnion([("axes", PCA(2)), ("scaled", StandardScaler()), ("no", "drop"), ("raw", "passthrough")])
    assert_as_fitted_anew(make_pipeline(union, Ridge()), *arrays)


def test_sparse_between_the_steps(frame, arrays):
    X, y = frame
    assert_as_fitted_anew(make_pipeline(OneHotEncoder(), MultinomialNB()), X[["town"]], y)
    counts = sparse.csr_array(np.abs(arrays[0]).round())
    assert_as_fitted_anew(make_pipeline(StandardScaler(with_mean=False), Ridge()), counts, arrays[1])


def test_texts():
    texts = ["red green", "red blue", "green green", "blue", "red only-here"] * 6
    texts[0] = "never-again red"
    y = np.array([0, 1, 0, 1, 1] * 6)
    done = assert_as_fitted_anew(make_pipeline(TfidfVectorizer(), MultinomialNB()), texts, y, rows=[0, 3])
    assert "never" not in done.estimator[0].vocabulary_


def test_nothing_is_remembered_of_the_rows_that_stay(arrays, tmp_path):
    pipeline = make_pipeline(StandardScaler(), PCA(2), Ridge(), memory=str(tmp_path)).fit(*arrays)
    before = sorted(tmp_path.rglob("*"))
    unfit(pipeline, *arrays, ROWS)
    assert sorted(tmp_path.rglob("*")) == before


def test_one_request_after_the_other(arrays):
    X, y = arrays
    pipeline = make_pipeline(StandardScaler(), PCA(3), RidgeClassifier())
    unfitter = Unfitter(pipeline.fit(X, y), X, y)
    for row in range(0, 60, 6):
        done = unfitter.unfit([row])
    stay = np.setdiff1d(np.arange(120), range(0, 60, 6))
    assert_same(done.estimator, clone(pipeline).fit(X[stay], y[stay]))


def test_a_step_that_writes_into_its_data_leaves_them_alone(arrays):
    X, y = arrays
    pipeline = make_pipeline(StandardScaler(copy=False), Ridge(copy_X=False)).fit(X.copy(), y)
    before = X.copy()
    unfit(pipeline, X, y, ROWS)
    np.testing.assert_array_equal(X, before)


def test_other_data_are_noticed_at_each_step(arrays):
    X, y = arrays
    pipeline = make_pipeline(StandardScaler(), Ridge()).fit(X, y)
    with pytest.raises(InputError, match="StandardScaler fitted on them differs"):
        unfit(pipeline, X + 1e-3, y, [0])
    with pytest.raises(InputError, match=r"Ridge fitted on them differs from the estimator in coef_"):
        unfit(pipeline, X, y[::-1], [0])


def test_what_has_no_way_is_refused_inside_as_well(arrays):
    X, y = arrays
    with pytest.raises(NeverSupportedError, match="RandomForestClassifier"):
        unfit(make_pipeline(StandardScaler(), RandomForestClassifier(2)).fit(X, y), X, y, [0])
    columns = make_column_transformer((make_pipeline(TargetEncoder()), [0])).fit(X, y)
    with pytest.raises(NotYetSupportedError, match="TargetEncoder"):
        unfit(columns, X, y, [0])


def test_weights_can_not_be_passed_through_a_pipeline(arrays):
    X, y = arrays
    with pytest.raises(InputError, match=r"sample_weight: Pipeline\.fit takes none"):
        unfit(make_pipeline(StandardScaler(), Ridge()).fit(X, y), X, y, [0], sample_weight=np.ones(120))


def test_a_pipeline_that_learns_nothing_is_refused(arrays):
    with pytest.raises(InputError, match="no step"):
        unfit(Pipeline([("a", "passthrough")]).fit(*arrays), *arrays, [0])
