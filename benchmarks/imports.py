"""How long it takes until the package is there: ``python -m benchmarks.imports``.

Each command runs in a process of its own. The time of ``python -c pass`` is taken off, since Python needs it anyway.
Exits with 1 if a time is over its bar.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

RUNS = 7  # the median of so many is shown
COMMANDS: tuple[tuple[str, tuple[str, ...], float], ...] = (  # name, arguments of python, bar in seconds
    ("import excise", ("-c", "import excise"), 0.2),
    ("excise --help", ("-m", "excise", "--help"), 0.5),
    ("excise reproduce --list", ("-m", "excise", "reproduce", "--list"), 0.5),
)


def median_seconds(arguments: Sequence[str], runs: int = RUNS) -> float:
    """The median time of a Python process with these arguments, files warm."""
    call = [sys.executable, *arguments]
    subprocess.run(call, check=True, stdout=subprocess.DEVNULL)  # compiles, and fills the file cache
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(call, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> int:
    python = median_seconds(("-c", "pass"))
    print(f"{'command':<24}{'seconds':>9}{'beyond python':>15}{'bar':>6}")
    print(f"{'python -c pass':<24}{python:>9.3f}")
    late = 0
    for name, arguments, bar in COMMANDS:
        seconds = median_seconds(arguments)
        late += seconds - python > bar
        print(f"{name:<24}{seconds:>9.3f}{seconds - python:>15.3f}{bar:>6.1f}")
    return int(late > 0)


if __name__ == "__main__":
    sys.exit(main())
