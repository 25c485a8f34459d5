"""What the user's own model, loss or data raise, as an error that says which of them it was, and with what remedy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from excise._support.reading import reason
from excise.errors import ExciseError, InputError, ProcessError
from excise.processes.group import is_of_others

P = ParamSpec("P")
R = TypeVar("R")
REMEDIES = {
    **dict.fromkeys(
        ("train_set", "test_set"),
        "every position below its length must give a sample, and collate= must make a batch of several",
    ),
    "model": "try it on a batch by hand, and pass forward= to Task where it is called in another way",
    "loss": "it is called as loss(outputs, targets), whose shapes and types must be what it takes",
}


def set_asked(task: Any, *given: object, **named: object) -> str:
    """Which of a task's sets samples are read from: the test set, if that was given."""
    given = (*given, *named.values())
    return "test_set" if task.test_set is not None and any(one is task.test_set for one in given) else "train_set"


def asked(part: str | Callable[..., str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Around a function that does nothing but ask the user's part, which its arguments may tell.

    Lack of memory is left as it is.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*arguments: P.args, **options: P.kwargs) -> R:
            try:
                return function(*arguments, **options)
            except (ExciseError, MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                if "memory" in str(error):
                    raise
                what = part if isinstance(part, str) else part(*arguments, **options)
                if is_of_others(error):
                    raise ProcessError(
                        f"another process has ended while {what} was used by all ({reason(error)}); nothing was "
                        "applied or written. See what it says, and start all of them anew."
                    ) from error
                name = type(error).__name__
                raise InputError(f"{what} failed ({name}: {reason(error)}); {REMEDIES[what]}.") from error

        return guarded

    return decorate
