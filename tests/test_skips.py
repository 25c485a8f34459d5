"""Tests that lack their data are skipped; on CI, where there is a folder of data, that is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "there", "code"), [("true", True, 1), ("", True, 0), ("true", False, 0)])
def test_a_session_with_skips_for_lack_of_data(tmp_path, ci, there, code):
    data = tmp_path if there else tmp_path / "nowhere"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/statistics/test_celeba.py"],
        cwd=ROOT,
        env={**os.environ, "CI": ci, "EXCISE_DATA": str(data)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert "lack of data: needs celeba/" in done.stdout
    assert ("tests were skipped for lack of data, 0 were expected" in done.stdout) == (code == 1)
