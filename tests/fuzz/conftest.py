"""What is compiled on first use is compiled before any clock runs: that takes seconds on a quiet machine."""

import numpy as np
import pytest

import excise


@pytest.fixture(scope="session", autouse=True)
def _compile():
    x, y = np.random.default_rng(0).standard_normal((2, 8, 2))
    excise.xi(x[:, 0], y[:, 0])
    excise.codec(y[:, 0], x)
    excise.lcodec(y[:, 0], x[:, 0], x[:, 1])
    for find in (excise.foci, excise.lfoci):
        find(x, y[:, 0], n_jobs=1)
