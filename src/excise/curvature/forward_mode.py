"""Derivatives forwards: torch keeps their state, and the switches of its kernels, for the whole process.

Two threads that each take one come upon each other's: they fail, or leave switches as the other had put them. So all of
it happens in here, one thread at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_LOCK = threading.RLock()
"""Nothing that waits for another lock may be called inside."""


@contextmanager
def forward_mode() -> Iterator[None]:
    """No other thread takes a derivative forwards meanwhile."""
    with _LOCK:
        yield


@contextmanager
def plain_kernels(*, recurrent: bool) -> Iterator[None]:
    """Attention, and recurrent layers where there are some, by torch's plain operations: others can't go forwards."""
    with forward_mode(), _plain_attention(), _plain_recurrence(recurrent):
        yield


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention by matrix products: the fused kernels have no forward-mode derivatives."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _plain_recurrence(recurrent: bool) -> Iterator[None]:
    """Recurrent layers by torch's own operations: those of its libraries have no forward-mode derivatives."""
    if not recurrent:
        yield
        return
    libraries: list[Any] = [torch.backends.mkldnn, torch.backends.cudnn]
    were = [library.enabled for library in libraries]
    for library in libraries:
        library.enabled = False
    try:
        yield
    finally:
        for library, was in zip(libraries, were, strict=True):
            library.enabled = was
