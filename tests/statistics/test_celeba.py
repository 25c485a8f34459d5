"""A real table of 202,599 rows of ties; skipped where the data is not there."""

import numpy as np
import pytest
import reference
from data_folder import real

from excise import foci
from excise.datasets.celeba import load_attributes


@pytest.fixture(scope="module")
def attributes():
    return load_attributes(real("celeba"))


def test_official_file(attributes):
    values, names = attributes
    assert values.shape == (202_599, 40)
    assert set(np.unique(values)) == {-1, 1}
    assert names[0] == "5_o_Clock_Shadow"


@pytest.mark.slow
def test_a_few_hundred_rows_against_all_pairs(attributes):
    values, names = attributes
    target = names.index("Smiling")
    X, y = np.delete(values[:250], target, axis=1), values[:250, target]
    varying = X.max(axis=0) > X.min(axis=0)
    indices, scores = reference.foci(X[:, varying], y, 1, max_features=4)
    found = foci(X[:, varying], y, random_state=1, max_features=4)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_allclose(found.scores, scores, atol=1e-12)


@pytest.mark.slow
def test_all_rows(attributes):
    values, names = attributes
    target = names.index("No_Beard")
    X, y = np.delete(values, target, axis=1), values[:, target]
    found = foci(X, y, random_state=0, max_features=5)
    assert {"Goatee", "5_o_Clock_Shadow"} <= {np.delete(names, target)[i] for i in found.indices}
