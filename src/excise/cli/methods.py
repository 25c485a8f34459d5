"""A method and its options from words: ``--method step --set selection.share=0.2 --guard 3``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from excise.errors import InputError

if TYPE_CHECKING:  # they load torch
    from excise.task.task import Task
    from excise.unlearning.guard import Guard
    from excise.unlearning.method import Method

method_option = click.option(
    "--method",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="How to forget: auto (chooses, and says why), predicted (move to predicted answers), step (one Newton "
    "step), descent (several), drift (a pass over the retained samples), thorough "
    "(three), class (for a whole class of the model), images or mirrored-images (known by heart), or another method's "
    "name, such as ssd.",
)
set_option = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="OPTION=VALUE",
    help="An option of the method, such as steps=8, selection=all or selection.share=0.2; may be given several times.",
)
perturbation_option = click.option(
    "--perturbation",
    metavar="MODULE:FACTORY",
    help="A function that gives how samples are perturbed, where the task does not say so: such as one that returns "
    "TokenReplacement.for_tokenizer(tokenizer), for text.",
)
guard_option = click.option(
    "--guard",
    metavar="FACTOR",
    help="How many times the loss of retained samples may become what it was, or none.  [default: 1.5]",
)


def chosen_method(name: str, assignments: Iterable[str]) -> Method:
    """The method of this name, with the options set."""
    from excise.unlearning.method import method_named

    method: Any = method_named(name)
    for assignment in assignments:
        path, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not path:
            raise InputError(f"--set must be given as OPTION=VALUE, not {assignment!r}; such as --set steps=8.")
        method = _with(method, path.split("."), _value(text), assignment)
    chosen: Method = method
    return chosen


def _with(thing: Any, path: list[str], value: Any, assignment: str) -> Any:
    """The same object with one option set, somewhere inside it."""
    from excise.baselines import AsMethod
    from excise.unlearning.method import refuse_unknown_option

    if isinstance(thing, AsMethod):  # whose options are those of a function
        return AsMethod(thing.name, {**thing.options, ".".join(path): value})
    refuse_unknown_option(type(thing), path[0], f"--set {assignment}: ")
    if len(path) > 1:
        inner = getattr(thing, path[0])
        if not dataclasses.is_dataclass(inner):
            raise InputError(f"--set {assignment}: {path[0]} has no options of its own.")
        value = _with(inner, path[1:], value, assignment)
    return dataclasses.replace(thing, **{path[0]: value})


def _value(text: str) -> Any:
    """A number, true, false or null where it is one, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def with_perturbation(task: Task, address: str | None) -> Task:
    """The task with the perturbation that is found there."""
    from excise.task.loading import made_by

    if address is None:
        return task
    perturbation = made_by(address, "perturbation")
    if not callable(perturbation):
        raise InputError(
            f"--perturbation {address} must return what is called as perturbation(inputs, copies, generator), not a "
            f"{type(perturbation).__name__}; such as TokenReplacement.for_tokenizer(tokenizer)."
        )
    return dataclasses.replace(task, perturbation=perturbation)


def chosen_guard(text: str | None) -> Guard | None:
    """The default guard, none, or one of this factor."""
    from excise.unlearning.guard import DEFAULT_GUARD, Guard

    if text is None:
        return DEFAULT_GUARD
    if text == "none":
        return None
    try:
        return Guard(float(text))
    except ValueError as error:
        reason = error if isinstance(error, InputError) else "it is no number"
        raise InputError(f"--guard must be a factor of 1 or more, or none, not {text!r} ({reason}).") from None
