"""What can go wrong: one base class, so that ``except ExciseError`` catches everything raised on purpose."""

import sys
import warnings
from pathlib import Path


class ExciseError(Exception):
    """Base of all errors that excise raises on purpose."""

    exit_code = 1
    """Of the command line, where it ends it."""


class InputError(ExciseError, ValueError):
    """An argument has the wrong shape, type or value; the message names the argument, what it got and the remedy."""


class NotYetSupportedError(ExciseError, TypeError):
    """The model has a part that excise can't treat yet; the message names the module and a way round it."""


class NeverSupportedError(ExciseError, TypeError):
    """The model is of a kind that the method does not apply to."""


class NothingForgotten(ExciseError, RuntimeError):
    """A request could not be carried out at all: the model, and what counts as forgotten, are as they were.

    Usually the guard allowed no part of the step; the message says what to do. On the command line the exit code is 3,
    and no file is written.
    """

    exit_code = 3

    def __init__(self, message: str, slices: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.slices = slices
        """Names of the slices that would have been updated."""


class ProcessError(ExciseError, RuntimeError):
    """Another of the processes that work on a model together failed, ended or does something else.

    Nothing was applied or written. The message says which process, and why as far as it told.
    """


class MissingExtraError(ExciseError, ImportError):
    """A feature needs an optional package that is not installed."""


class DataError(ExciseError, OSError):
    """A data file is missing or damaged; the message names it, what was expected and where to get it."""


class WorkersLostError(ExciseError, RuntimeError):
    """The workers that a search or trainings were shared out over died, again and again; the message says of what."""


class UndefinedWarning(RuntimeWarning):
    """A coefficient is not defined for this data (a constant y, for example) and is reported as NaN."""


class ToleranceWarning(UserWarning):
    """A figure is not as exact as asked for; the message says how exact it is, and what would help."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside this package that led here, however deep the call."""
    home = str(Path(__file__).parent)
    inside = (home, "<string>")  # the latter is the __init__ of a dataclass
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
