"""What it costs that processes send each other something: measured between two that are started for it.

``python -m excise.planning.messages RANK FILE`` is one of the two.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from excise.errors import ExciseError
from excise.processes.lines import GroupLines, Lines
from excise.processes.rehearsal import Kind, Sent

SIZES = (16, 1_000, 10_000, 100_000, 1_000_000, 8_000_000)  # bytes
TIMES, LARGE = 40, 8  # that each is sent; less often from 100,000 bytes on
PATIENCE = 60.0  # seconds for the two to begin and end


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
        command = [sys.executable, "-m", "excise.planning.messages"]
        plain = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK")}
        plain |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pair = [
            subprocess.Popen([*command, str(rank), meeting], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=plain)
            for rank in range(2)
        ]
        try:
            said = [one.communicate(timeout=PATIENCE) for one in pair]
        except subprocess.TimeoutExpired as error:
            raise ExciseError("two processes that were started to measure messages did not end.") from error
        finally:
            for one in pair:
                one.kill()
    if any(one.returncode for one in pair):
        raise ExciseError(f"two processes can't send each other anything here: {said[0][1].decode().strip()[-300:]}")
    first, second = (json.loads(output.splitlines()[-1]) for output, _ in said)
    return Prices({kind: [max(both) for both in zip(first[kind], second[kind], strict=True)] for kind in first})


def measured(lines: Lines) -> dict[Kind, list[float]]:
    """Seconds of messages of all kinds and sizes."""

    def sending(kind: Kind, size: int) -> Callable[[], object]:
        values = torch.zeros(max(1, size // 8), dtype=torch.double)
        given = bytes(size)
        ways: dict[Kind, Callable[[], object]] = {
            "words": lambda: lines.words(values),
            "add": lambda: lines.add(values),
            "spread": lambda: lines.spread(values, 0),
            "objects": lambda: lines.objects(given),
        }
        return ways[kind]

    kinds: tuple[Kind, ...] = ("words", "add", "spread", "objects")
    return {kind: [_seconds(sending(kind, size), size, lines) for size in SIZES] for kind in kinds}


def _seconds(send: Callable[[], object], size: int, lines: Lines) -> float:
    """Of one in the middle, each after both were ready."""
    found = []
    ready = torch.zeros(2)
    for _ in range(TIMES if size < 100_000 else LARGE):
        lines.words(ready)
        began = time.perf_counter()
        send()
        found.append(time.perf_counter() - began)
    return median(found)


def main() -> None:
    """One of the two."""
    rank, meeting = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    inside = dist.new_group(backend="gloo")
    found = measured(GroupLines(dist.group.WORLD, inside, inside, 2))
    print(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # lines that are taken down one after the other may complain


if __name__ == "__main__":
    main()
