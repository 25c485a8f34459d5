"""Keys of a ledger, and a certificate signed by them."""

import pytest
from deletion_certificates import certificate_body

from excise.ledger.deletion_certificate import signed
from excise.ledger.keys import LedgerKeys


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
