"""One pair of processes for all tests: to start them takes longer than most of these."""

import pytest
from two_processes import Pair


@pytest.fixture(scope="session")
def both():
    pair = Pair()
    yield pair
    pair.close()
