"""How long messages between two processes take: ``python -m excise.processes.timing RANK FILE`` is one of the two.

Nothing but torch is loaded, so that they are there soon.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from excise.processes.lines import GroupLines, Lines
from excise.processes.rehearsal import Kind

SIZES = (16, 1_000, 10_000, 100_000, 1_000_000, 8_000_000)  # bytes
TIMES, LARGE = 40, 8  # that each is sent; less often from 100,000 bytes on


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
