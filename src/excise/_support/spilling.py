"""Arrays that are too large for memory, in temporary files that are mapped into it.

The files have no name once they are open, so that nothing is left of them, whatever becomes of the process. They lie
where temporary files do (``TMPDIR``).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excise._support.reading import reason
from excise.errors import InputError

TYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.uint8: np.uint8}


class Spilled:
    """A tensor in a file.

    >>> numbers = Spilled((2, 3), torch.float32)
    >>> numbers.tensor[:] = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> numbers.give_back()  # what was read or written is in the file alone
    >>> numbers.tensor.sum()
    tensor(21.)
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        kind = np.dtype(TYPES[dtype])
        size = max(1, int(np.prod(shape, dtype=np.int64))) * kind.itemsize
        self._file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the tensor
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, size)  # to write where there is no room would be fatal
            else:
                self._file.truncate(size)
            self._map = mmap.mmap(self._file.fileno(), size)
        except OSError as error:
            self._file.close()
            raise InputError(
                f"{tempfile.gettempdir()} has no room for {size / 2**30:.1f} GiB ({reason(error)}), which memory is "
                "too small for; name a folder with more by the environment variable TMPDIR."
            ) from error
        array = np.frombuffer(self._map, dtype=kind, count=int(np.prod(shape, dtype=np.int64)))
        self.tensor: Tensor = torch.from_numpy(array.reshape(shape))
        self.bytes = size

    def give_back(self) -> None:
        """Let the system take the memory that holds parts of the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                self._map.madvise(mmap.MADV_DONTNEED)
