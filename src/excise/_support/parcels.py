"""What workers need for their pieces of work, packed once: by value, but for files that are mapped into memory."""

from __future__ import annotations

import hashlib
import io
import mmap
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from excise._support.reading import reason
from excise.errors import InputError

_SENT_ALONG: set[str] = set()
_OPENED: dict[str, Any] = {}
"""The last parcel that this process has opened, by its hash."""
_OPENING = threading.Lock()


@dataclass(frozen=True)
class Parcel:
    """Something packed for other processes."""

    data: bytes
    digest: str


def send_along(module: str) -> None:
    """Have a module's own functions and classes packed by value: workers can't import what lies in this folder."""
    _SENT_ALONG.add(module.partition(".")[0])


def packed(thing: Any, what: str) -> Parcel:
    """Pack a thing, ``what`` in words; one that can't be is an error that says why."""
    cloudpickle = _cloudpickle()

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, given: Any) -> Any:
            place = _place_of(given) if isinstance(given, np.memmap) else None
            return super().reducer_override(given) if place is None else (_mapped, place)

    buffer = io.BytesIO()
    try:
        with _by_value(cloudpickle):
            Pickler(buffer).dump(thing)
    except Exception as error:  # whatever a part of the user's raises
        raise InputError(
            f"{what} can't be sent to workers ({type(error).__name__}: {reason(error)}); a data set, model or function "
            "in it must not hold what belongs to this process, such as open files, locks and generators: open these "
            "when a sample is read, or do without workers."
        ) from error
    data = buffer.getvalue()
    return Parcel(data, hashlib.sha256(data).hexdigest())


def opened(data: Any, digest: str) -> Any:
    """What is in a parcel, given as its bytes or an array of them; the same one is opened once in a process."""
    import pickle

    with _OPENING:
        if digest not in _OPENED:
            _OPENED.clear()
            try:
                # by joblib's own workers, which run what this program sends them in any case; never a file
                _OPENED[digest] = pickle.loads(memoryview(data))
            except Exception as error:
                raise InputError(
                    f"a worker can't open what it was sent ({type(error).__name__}: {reason(error)}); modules and "
                    "memory-mapped files of the task must be there under the same names as here."
                ) from error
        return _OPENED[digest]


def _cloudpickle() -> Any:
    """The one that joblib has: a package of its own, or in versions before 1.6 a part of it."""
    try:
        import cloudpickle
    except ImportError:
        from joblib.externals import cloudpickle
    return cloudpickle


@contextmanager
def _by_value(cloudpickle: Any) -> Iterator[None]:
    """What is to be sent along is packed by value inside."""
    modules = [sys.modules[name] for name in sorted(_SENT_ALONG) if name in sys.modules]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _place_of(array: Any) -> tuple[str, str, int, tuple[int, ...]] | None:
    """Where a mapped array lies: file, type, offset and shape; None for a view with gaps."""
    root = array
    while isinstance(root.base, np.memmap):
        root = root.base
    if not isinstance(root.base, mmap.mmap) or root.filename is None or not array.flags.c_contiguous:
        return None
    if array.dtype.hasobject:
        return None
    offset = root.offset + array.ctypes.data - root.ctypes.data
    return str(Path(root.filename).resolve()), array.dtype.str, int(offset), array.shape


def _mapped(file: str, dtype: str, offset: int, shape: tuple[int, ...]) -> Any:
    return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)
