"""FOCISelector inside scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from excise import FOCISelector, foci


@parametrize_with_checks([FOCISelector(random_state=0), FOCISelector(noise=0.1, max_features=2, random_state=0)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((300, 6)), columns=list("abcdef"))
    return X, (X["b"] + X["e"] > 0).astype(int)


def test_selects_what_foci_selects(data):
    X, y = data
    selector = FOCISelector(random_state=0).fit(X, y)
    found = foci(X, y)
    np.testing.assert_array_equal(selector.indices_, found.indices)
    np.testing.assert_array_equal(selector.scores_, found.scores)
    assert selector.get_feature_names_out().tolist() == sorted(found.names)
    assert selector.transform(X).shape == (300, len(found))


def test_grid_search_over_a_pipeline(data):
    X, y = data
    pipeline = make_pipeline(FOCISelector(random_state=0), LogisticRegression())
    search = GridSearchCV(pipeline, {"fociselector__max_features": [1, 2]}, cv=3).fit(X, y)
    assert search.best_params_ == {"fociselector__max_features": 2}
    assert search.best_score_ > 0.9


def test_clone_keeps_the_options():
    assert clone(FOCISelector(max_features=3, noise=0.5)).get_params()["noise"] == 0.5


def test_constant_columns_are_never_kept(data):
    X, y = data
    X = X.assign(same=1.0)
    assert not FOCISelector().fit(X, y).get_support()[-1]
    with pytest.warns(UserWarning, match="No features were selected"):
        assert FOCISelector().fit(X[["same"]], y).transform(X[["same"]]).shape == (300, 0)


def test_labels_of_two_classes_may_be_text(data):
    X, y = data
    named = y.map({0: "no", 1: "yes"})
    np.testing.assert_array_equal(FOCISelector().fit(X, named).indices_, FOCISelector().fit(X, y).indices_)
    with pytest.raises(ValueError, match="contains text"):
        FOCISelector().fit(X, y.map({0: "no", 1: "yes"}).where(X["a"] < 1, "maybe").astype(object))
