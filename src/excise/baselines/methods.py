"""The baselines as methods of ``Unlearner``: ``Unlearner(task, "ssd")``, ``excise forget --method ssd``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from torch import nn

from excise._support.checks import choice
from excise.baselines.registry import METHODS
from excise.errors import InputError
from excise.unlearning.method import Applied, Removal, Unprepared, Workspace, register

GIVEN = ("task", "model", "forget", "seed", "forgotten")  # what a request decides


@dataclass(frozen=True)
class AsMethod(Unprepared):
    """A baseline with its options; it goes on from the model as it is, and knows what is gone from it already."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    heeds_guard: ClassVar[bool] = False

    def __post_init__(self) -> None:
        known = option_names(choice(self.name, tuple(METHODS), "name"))
        for option in self.options:
            if option not in known:
                others = sorted(name for name in METHODS if option in option_names(name))
                heeded = f"; {', '.join(others)} {'does' if len(others) == 1 else 'do'}" if others else ""
                raise InputError(f"{self.name} does not heed {option}{heeded}. It has {', '.join(known)}.")

    def apply(self, workspace: Workspace, _: None, model: nn.Module, removal: Removal) -> Applied:
        """Run the baseline, and take over the weights that it gives."""
        removal.stages.begin(self.name)
        earlier = sorted(removal.gone - set(removal.ids))
        function = METHODS[self.name]
        new = function(workspace.task, model, removal.ids, seed=removal.seed, forgotten=earlier, **self.options)
        model.load_state_dict(new.state_dict())
        return Applied()


def option_names(name: str) -> list[str]:
    """The options of a baseline that may be set."""
    return [one for one in inspect.signature(METHODS[name]).parameters if one not in GIVEN]


def register_all() -> None:
    """Make every baseline known as a method; those of this package itself are known already, as objects."""
    for name in METHODS:
        if name not in ("excise-step", "excise-drift", "paper-step"):
            register(name)(partial(AsMethod, name))
