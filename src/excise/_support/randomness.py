"""The random state of the process, which all threads share: who needs it puts back what was there."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_LOCK = threading.RLock()
"""Nothing that waits for another lock may be called inside."""


class RandomStream:
    """Random numbers of a seed for what can only draw from torch's global state, such as dropout.

    The stream takes the global state's place in turns, and goes on each time where it was. Another stream's turn, in
    another thread, waits.

    >>> stream = RandomStream(0)
    >>> with stream.turn():
    ...     first = torch.rand(1)
    >>> with stream.turn():
    ...     second = torch.rand(1)
    >>> torch.equal(torch.cat([first, second]), torch.rand(2, generator=torch.Generator().manual_seed(0)))
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._state: Any = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """What is drawn inside is of this stream; afterwards the global state is as before."""
        with _LOCK:
            before = _torch_state()
            try:
                if self._state is None:
                    torch.manual_seed(self._seed)
                else:
                    _set_torch_state(self._state)
                yield
                self._state = _torch_state()
            finally:
                _set_torch_state(before)


class _Seeded:
    """Who is inside of ``seeded`` now, in all threads."""

    count = 0
    outside: Any = None
    """The state before the first of them came in."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global randomness of torch, numpy and Python from the seed inside; afterwards as it was before.

    For long work of any kind, so that it does not keep other threads waiting: of two at once one may draw what the
    other was to. The last to leave puts back what the first found.
    """
    with _LOCK:
        before = _torch_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
        if _Seeded.count == 0:
            _Seeded.outside = before
        _Seeded.count += 1
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - what a recipe or a data set may use
        random.seed(seed)
    try:
        yield
    finally:
        with _LOCK:
            _Seeded.count -= 1
            torchs, pythons, numpys = before if _Seeded.count else _Seeded.outside
            _set_torch_state(torchs)
            random.setstate(pythons)
            np.random.set_state(numpys)  # noqa: NPY002


def _torch_state() -> Any:
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), gpus


def _set_torch_state(state: Any) -> None:
    cpu, gpus = state
    torch.set_rng_state(cpu)
    if gpus:
        torch.cuda.set_rng_state_all(gpus)
