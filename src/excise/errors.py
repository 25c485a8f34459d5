"""What can go wrong: one base class, so that ``except ExciseError`` catches everything raised on purpose."""


class ExciseError(Exception):
    """Base of all errors that excise raises on purpose."""


class InputError(ExciseError, ValueError):
    """An argument has the wrong shape, type or value; the message names the argument, what it got and the remedy."""


class MissingExtraError(ExciseError, ImportError):
    """A feature needs an optional package that is not installed."""


class UndefinedWarning(RuntimeWarning):
    """A coefficient is not defined for this data (a constant y, for example) and is reported as NaN."""
