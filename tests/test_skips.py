"""Tests that lack their data are skipped; on CI, where there is a folder of data, that is a failure."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest
from data_folder import LACKING

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_session_on_ci_fails_for_lack_of_data(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/statistics/test_celeba.py"],
        cwd=ROOT,
        env={**os.environ, "CI": "true", "EXCISE_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "lack of data: needs celeba/" in done.stdout
    assert "tests were skipped for lack of data, 0 were expected" in done.stdout


@pytest.mark.parametrize(
    ("ci", "there", "counted"), [("true", True, 2), ("", True, 0), ("true", False, 0), ("false", True, 0)]
)
def test_skips_are_counted_on_ci_where_there_is_data(tmp_path, monkeypatch, ci, there, counted):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(conftest, "DATA", tmp_path if there else tmp_path / "nowhere")
    reports = [SimpleNamespace(longrepr=words) for words in (f"{LACKING}: needs celeba/", LACKING, "no PostgreSQL")]
    plugins = SimpleNamespace(get_plugin=lambda _: SimpleNamespace(stats={"skipped": reports}))
    assert conftest._too_many_skipped(SimpleNamespace(pluginmanager=plugins)) == counted
