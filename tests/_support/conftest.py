"""One process that children are forked from, for all tests here."""

import pytest
from nursery import Nursery


@pytest.fixture(scope="session")
def nursery():
    one = Nursery()
    yield one
    one.close()
