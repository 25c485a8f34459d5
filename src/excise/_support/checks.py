"""Turning what users pass (arrays, lists, data frames, tensors) into checked numpy arrays."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise.errors import InputError

Array = NDArray[Any]
MIN_ROWS = 3
LARGEST_SEED = 2**63 - 1  # torch takes 64 bits, and seeds are counted on from


def vector(values: Any, name: str) -> Array:
    """A numeric, finite, one-dimensional array."""
    array = numeric(values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{name} must be one column, but has shape {array.shape}; pass one column at a time.")
    _check_length(array, name)
    _check_finite(array[:, None], name, None)
    return array


def matrix(values: Any, name: str) -> Array:
    """A numeric, finite array of rows × columns; a single column may be one-dimensional."""
    array = numeric(values, name)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InputError(f"{name} must be rows × columns, but has shape {array.shape}; reshape it to two dimensions.")
    if array.shape[1] == 0:
        raise InputError(f"{name} has no columns (shape {array.shape}); pass at least one.")
    _check_length(array, name)
    _check_finite(array, name, column_names(values))
    return array


def same_length(**arrays: Array) -> int:
    """The common number of rows of all the arrays."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(f"All inputs must have the same number of rows, but {shown}; align them first.")
    return next(iter(lengths.values()))


def column_names(values: Any) -> tuple[str, ...] | None:
    """Names of the columns of a data frame, else None."""
    columns = getattr(values, "columns", None)
    return None if columns is None else tuple(str(column) for column in columns)


def generator(random_state: Any) -> np.random.Generator:
    """One source of randomness from None, a seed or a numpy generator."""
    if isinstance(random_state, np.random.RandomState):  # scikit-learn's habit
        return np.random.default_rng(random_state.randint(2**31))
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise InputError(
            f"random_state must be None, a non-negative integer or a numpy Generator, not {random_state!r}."
        ) from None


def key(rng: np.random.Generator) -> np.uint64:
    """A 64-bit number that all draws of one evaluation are made from."""
    return rng.integers(2**64, dtype=np.uint64)


def apart_from(rng: np.random.Generator) -> np.random.Generator:
    """A stream of its own, since a table may be made from the same seed: its numbers must not be drawn once more.

    >>> bool(apart_from(np.random.default_rng(0)).random() == np.random.default_rng(0).random())
    False
    """
    return np.random.default_rng([int(key(rng)), 1])


def choice(value: Any, options: Sequence[str], name: str) -> str:
    """One of the options, or an error that suggests the nearest."""
    if value in options:
        return str(value)
    close = difflib.get_close_matches(str(value), options, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{name} must be one of {', '.join(map(repr, options))}, not {value!r}.{hint}")


def require(right: object, name: str, value: object, words: str, meaning: str = "") -> None:
    """Raise the error that an argument must be something else, unless it is right; a meaning says what it is for."""
    if not right:
        raise InputError(f"{name} must be {words}, not {value!r}{'; ' if meaning else ''}{meaning}.")


def whole(value: Any, name: str, least: int = 1, meaning: str = "") -> int:
    """A whole number that is large enough."""
    right = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least
    require(right, name, value, f"a whole number, {least} or more", meaning)
    if name == "seed" and value > LARGEST_SEED:
        raise InputError(f"seed must be a whole number from 0 to {LARGEST_SEED}, and what was given is larger.")
    return int(value)


def is_number(value: Any) -> bool:
    """Whether it is a real number, which True and NaN are not.

    >>> is_number(1.5), is_number("1.5"), is_number(True), is_number(float("nan"))
    (True, False, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


def number(value: Any, name: str, *, positive: bool = False, below: float = math.inf, meaning: str = "") -> float:
    """A finite number that is not negative."""
    real = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    words = f"a {'positive' if positive else 'non-negative'} number" + (f" below {below:g}" if below < math.inf else "")
    require(0 < real < below or (real == 0 and not positive), name, value, words, meaning)
    return real


def positive(value: Any, name: str) -> None:
    """Require a positive, finite number."""
    number(value, name, positive=True)


def numeric(values: Any, name: str) -> Array:
    """Numbers of any kind that users pass, as an array."""
    if hasattr(values, "detach"):  # a torch tensor, wherever it lives
        values = _from_tensor(values, name)
    if hasattr(values, "toarray"):
        raise InputError(f"{name} is a sparse matrix; pass {name}.toarray().")
    if np.ma.is_masked(values):
        raise InputError(f"{name} has masked entries; fill them or drop those rows.")
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} has rows of unequal length; pass a rectangular table.") from None
    if array.dtype == object:
        array = _from_objects(array, name)
    if array.dtype.kind == "c":
        raise InputError(f"{name} is complex ({array.dtype}); pass real and imaginary parts as columns of their own.")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numeric, not {array.dtype}; encode text and dates as numbers first.")
    if array.dtype == np.longdouble or array.dtype == np.float16:
        array = array.astype(np.float64)
    return array.astype(np.uint8) if array.dtype == bool else array


def _from_tensor(tensor: Any, name: str) -> Array:
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.element_size() < 4:  # numpy knows neither bfloat16 nor float8
        tensor = tensor.float()
    try:
        array: Array = tensor.cpu().numpy()
    except (RuntimeError, TypeError, NotImplementedError):
        raise InputError(
            f"{name} is a {tensor.layout} tensor on {tensor.device}; pass a dense one with values."
        ) from None
    return array


def _from_objects(array: Array, name: str) -> Array:
    """Numbers that came in an object array: mixed columns of a data frame, nullable types, Decimal."""
    for value in array.flat:
        if isinstance(value, str | bytes):
            raise InputError(f"{name} contains text ({value!r}); encode it as numbers first.")
        if isinstance(value, complex):
            raise InputError(f"{name} contains a complex number ({value!r}); pass its parts as columns of their own.")
    if array.size and all(isinstance(value, Integral) for value in array.flat):
        with contextlib.suppress(OverflowError):
            return array.astype(np.int64)
    missing = [value is None or str(value) == "<NA>" for value in array.flat]
    if any(missing):
        array = np.where(np.reshape(missing, array.shape), np.nan, array)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numeric, but contains {type(array.flat[0]).__name__} objects.") from None


def _check_length(array: Array, name: str) -> None:
    if len(array) < MIN_ROWS:
        raise InputError(f"{name} has {len(array)} rows; at least {MIN_ROWS} are needed.")


def _check_finite(array: Array, name: str, names: tuple[str, ...] | None) -> None:
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):  # one number tells, without a mask as large as the table
            return
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, column = bad[0]
        where = f"row {row}" if array.shape[1] == 1 else f"row {row}, column {names[column] if names else column}"
        raise InputError(
            f"{name} contains {array[row, column]} ({where}; {len(bad)} such values in all); "
            "drop those rows or fill them in."
        )


def finite(values: Any, name: str, dimensions: int) -> NDArray[np.float64]:
    """A finite, non-empty array of so many dimensions."""
    array = numeric(values, name).astype(np.float64)
    if array.ndim != dimensions or array.size == 0:
        shape = "one list of at least one number" if dimensions == 1 else "a table of at least one row and column"
        raise InputError(f"{name} must be {shape}, but has shape {array.shape}.")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise InputError(
            f"{name} contains {array[tuple(bad[0])]} at {', '.join(map(str, bad[0]))} ({len(bad)} such values in all); "
            "leave those samples out, or find out where the model gives them."
        )
    return array
