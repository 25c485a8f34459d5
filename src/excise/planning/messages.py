"""What it costs that processes send each other something: measured between two that are started for it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from excise.errors import ExciseError
from excise.processes.rehearsal import Kind, Sent
from excise.processes.timing import SIZES

PATIENCE = 300.0  # seconds for the two to begin and end, on however busy a machine


@dataclass(frozen=True)
class Prices:
    """Seconds that a message between two processes takes."""

    seconds: Mapping[Kind, Sequence[float]]
    """Of every kind, for messages of ``SIZES`` bytes."""

    def of(self, kind: Kind, size: int) -> float:
        """Seconds for one, between two sizes along a line.

        >>> round(Prices({"add": [1.0, 2.0, 2.0, 2.0, 2.0, 9.0]}).of("add", 508), 3)
        1.5
        """
        values = self.seconds[kind]
        place = min(max(bisect_right(SIZES, size), 1), len(SIZES) - 1)
        (low, high), (first, second) = SIZES[place - 1 : place + 1], values[place - 1 : place + 1]
        return max(values[0], first + (second - first) * (size - low) / (high - low))

    def charge(self, sent: Sent) -> tuple[float, float]:
        """Seconds of waiting for messages, however short, and of what is in them."""
        waiting = math.fsum(count * self.seconds[kind][0] for (kind, _), count in sent.items())
        whole = math.fsum(count * self.of(kind, size) for (kind, size), count in sent.items())
        return waiting, whole - waiting


@lru_cache(maxsize=1)
def prices_here() -> Prices:
    """Of this machine, measured once, in a few seconds."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        command = [sys.executable, "-m", "excise.processes.timing"]
        plain = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK")}
        plain |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pair = [
            subprocess.Popen([*command, str(rank), meeting], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=plain)
            for rank in range(2)
        ]
        try:
            said = [one.communicate(timeout=PATIENCE) for one in pair]
        except subprocess.TimeoutExpired as error:
            raise ExciseError(
                f"two processes that were started to measure messages did not end within {PATIENCE:g} seconds; plan "
                "for one worker, or when the machine is less busy."
            ) from error
        finally:
            for one in pair:
                one.kill()
    if any(one.returncode for one in pair):
        raise ExciseError(f"two processes can't send each other anything here: {said[0][1].decode().strip()[-300:]}")
    first, second = (json.loads(output.splitlines()[-1]) for output, _ in said)
    return Prices({kind: rising([*map(max, first[kind], second[kind])]) for kind in first})


def rising(seconds: Sequence[float]) -> list[float]:
    """No message takes longer than a larger one, but for what else the machine did.

    >>> rising([5.0, 1.0, 2.0, 1.5, 4.0])
    [1.0, 1.0, 1.5, 1.5, 4.0]
    """
    return list(accumulate(reversed(seconds), min))[::-1]
