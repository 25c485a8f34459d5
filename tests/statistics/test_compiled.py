"""Where compiled functions can't be kept, they are compiled again, and the answer is the same."""

import os
import resource
import subprocess
import sys

import numpy as np
import pytest

import excise

SCRIPT = "import numpy as np, excise; x = np.sin(np.arange(40.0)); print(excise.codec(x**2, x, np.cos(2 * x)))"


def answer(cache, **options):
    """What a process of its own prints, with its compiled functions in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def kept(cache):
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}


@pytest.mark.slow
def test_compiled_functions_are_kept_where_the_disk_takes_them(tmp_path):
    x = np.sin(np.arange(40.0))
    truth = excise.codec(x**2, x, np.cos(2 * x))
    full = tmp_path / "full"
    assert answer(full, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))) == truth
    assert kept(full) == {}
    assert answer(tmp_path) == truth
    first = kept(tmp_path)
    assert first
    assert answer(tmp_path) == truth
    assert kept(tmp_path) == first
