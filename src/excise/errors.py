"""What can go wrong: one base class, so that ``except ExciseError`` catches everything raised on purpose."""

import sys
import warnings
from pathlib import Path


class ExciseError(Exception):
    """Base of all errors that excise raises on purpose."""


class InputError(ExciseError, ValueError):
    """An argument has the wrong shape, type or value; the message names the argument, what it got and the remedy."""


class NotYetSupportedError(ExciseError, TypeError):
    """The model has a part that excise can't treat yet; the message names the module and a way round it."""


class NeverSupportedError(ExciseError, TypeError):
    """The model is of a kind that the method does not apply to."""


class MissingExtraError(ExciseError, ImportError):
    """A feature needs an optional package that is not installed."""


class DataError(ExciseError, OSError):
    """A data file is missing or damaged; the message names it, what was expected and where to get it."""


class UndefinedWarning(RuntimeWarning):
    """A coefficient is not defined for this data (a constant y, for example) and is reported as NaN."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside this package that led here, however deep the call."""
    home = str(Path(__file__).parent)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(home):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
