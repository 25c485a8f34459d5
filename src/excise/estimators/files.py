"""Estimators in files: those of skops are read as data; those of joblib are programs, and run only where trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from excise._support.files import whole_file
from excise._support.reading import reason
from excise.errors import InputError, MissingExtraError

SAFE, PICKLED = (".skops",), (".joblib", ".pkl", ".pickle")
ENDINGS = (*SAFE, *PICKLED)


def read_estimator(path: Path, *, trusted: bool = False) -> Any:
    """The estimator in a file; one that could run a program when it is opened is refused unless it is trusted."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"{path}: not a file of an estimator; the name must end in {', '.join(ENDINGS)}.")
    if not path.is_file():
        raise InputError(f"{path}: there is no such file.")
    if ending in PICKLED:
        return _read_pickled(path, trusted)
    return _read_safe(path, trusted)


def write_estimator(estimator: Any, path: Path) -> None:
    """Write it in the format that the name ends in, whole or not at all."""
    with whole_file(path) as draft:
        if path.suffix.lower() in PICKLED:
            import joblib

            joblib.dump(estimator, draft)
        else:
            _skops().dump(estimator, draft)


def _read_pickled(path: Path, trusted: bool) -> Any:
    if not trusted:
        raise InputError(
            f"{path}: such files are pickles, which can run any program when they are opened; pass --trust if it "
            "comes from someone you trust, or save the estimator by skops.io.dump as a .skops file."
        )
    import joblib

    try:
        return joblib.load(path)
    except Exception as error:  # a damaged pickle raises anything
        raise InputError(f"{path}: could not be read ({reason(error)}).") from None


def _read_safe(path: Path, trusted: bool) -> Any:
    skops = _skops()
    try:
        unknown = skops.get_untrusted_types(file=path)
        if unknown and not trusted:
            raise InputError(
                f"{path}: has parts of types that are not known to be safe ({', '.join(map(str, unknown))}); pass "
                "--trust if it comes from someone you trust."
            )
        return skops.load(path, trusted=unknown)
    except InputError:
        raise
    except Exception as error:  # of a damaged file the library raises anything
        raise InputError(f"{path}: could not be read ({reason(error)}).") from None


def _skops() -> Any:
    try:
        import skops.io
    except ImportError:
        raise MissingExtraError(".skops files need skops; install it with: pip install 'excise[estimators]'") from None
    return skops.io
