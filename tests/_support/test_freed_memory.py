"""Freed memory is kept while a worker works, where the environment says otherwise."""

import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from excise._support.freed_memory import keeping_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(300):
        torch.ones(250_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = faults()
with keeping_freed_memory():
    faults()
    kept = faults()
print(plain, kept, faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the setting is one of glibc")
def test_memory_is_asked_for_once_and_given_back_at_the_end():
    environment = {"MALLOC_TRIM_THRESHOLD_": "65536", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    plain, kept, _ = map(int, done.stdout.split())
    assert plain > 30_000  # 245 pages of each tensor
    assert kept < plain / 20
