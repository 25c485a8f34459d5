"""Where the tests find real data: in the folder that EXCISE_DATA names, else in shared/data beside the repository."""

import os
from pathlib import Path

import pytest

LACKING = "lack of data:"  # how the reason of such a skip begins; conftest.py counts them
BESIDE = Path(__file__).parents[2] / "shared" / "data"
DATA = Path(os.environ.get("EXCISE_DATA") or BESIDE).expanduser()


def real(name):
    """A folder of the real data, or a skipped test."""
    if not (DATA / name).is_dir():
        pytest.skip(
            f"{LACKING} needs {name}/ in the folder that EXCISE_DATA names, or in shared/data beside the repository"
        )
    return DATA / name
