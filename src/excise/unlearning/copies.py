"""How a request changes a model: a copy of it, which is given out if all goes well."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from torch import Tensor, nn

from excise.privacy.certificate import Certificate
from excise.privacy.claims import certified
from excise.task.parameters import trainable
from excise.task.task import Task
from excise.unlearning.agreement import made_the_same
from excise.unlearning.convergence import require_change
from excise.unlearning.method import Applied, Method, Removal, Workspace


class Holding(Protocol):
    """Where the weights of a model are, and how they are changed."""

    def method(self, given: Method) -> Method:
        """The method, if it can be used."""

    def working(self) -> AbstractContextManager[None]:
        """Around all work with the model."""

    def prepare(self, method: Method, workspace: Workspace, model: nn.Module, ids: Tensor) -> Any:
        """What all requests share."""

    def changing(self, model: nn.Module) -> AbstractContextManager[nn.Module]:
        """The model to be changed inside; after an error the given one is as it was."""

    def apply(self, method: Method, workspace: Workspace, prepared: Any, model: nn.Module, removal: Removal) -> Applied:
        """Make the model forget, in place."""

    def changed(self, before: nn.Module, after: nn.Module, method: str, slices: tuple[str, ...]) -> int:
        """How many weights are others now: some, and finite, or it is an error."""

    def finish(self, model: nn.Module) -> None:
        """Make sure that all processes have the same model."""

    def certified(self, task: Task, model: nn.Module, residual: Tensor) -> Certificate:
        """What is proven about it."""


class Copies:
    """Each process has the whole model."""

    def method(self, given: Method) -> Method:
        """Any."""
        return given

    def working(self) -> AbstractContextManager[None]:
        """Work on samples is shared out where there are several processes."""
        return nullcontext()

    def prepare(self, method: Method, workspace: Workspace, model: nn.Module, ids: Tensor) -> Any:
        """As the method does."""
        return method.prepare(workspace, model, ids)

    @contextmanager
    def changing(self, model: nn.Module) -> Iterator[nn.Module]:
        """A copy."""
        yield copy.deepcopy(model)

    def apply(self, method: Method, workspace: Workspace, prepared: Any, model: nn.Module, removal: Removal) -> Applied:
        """As the method does."""
        return method.apply(workspace, prepared, model, removal)

    def changed(self, before: nn.Module, after: nn.Module, method: str, slices: tuple[str, ...]) -> int:
        """Weight by weight."""
        return require_change(trainable(before), trainable(after), method, slices)

    def finish(self, model: nn.Module) -> None:
        """All get the first one's."""
        made_the_same(model)

    def certified(self, task: Task, model: nn.Module, residual: Tensor) -> Certificate:
        """By a pass over the retained samples."""
        return certified(task, model, residual)
