"""A method inside another: what experiments change about one, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from excise.unlearning import Applied, Method, Removal, Workspace


@dataclass(frozen=True)
class Wrapped:
    """A method that does what the one inside does, in a workspace that may be told otherwise."""

    method: Method

    heeds_guard: ClassVar[bool] = True

    def told(self, workspace: Workspace) -> Workspace:
        """The workspace that the method inside sees."""
        return workspace

    def check(self, workspace: Workspace) -> None:
        """As the method inside."""
        self.method.check(self.told(workspace))

    def samples(self, workspace: Workspace, model: nn.Module) -> int:
        """As the method inside."""
        return self.method.samples(self.told(workspace), model)

    def prepare(self, workspace: Workspace, model: nn.Module, ids: Tensor) -> Any:
        """As the method inside."""
        return self.method.prepare(self.told(workspace), model, ids)

    def apply(self, workspace: Workspace, prepared: Any, model: nn.Module, removal: Removal) -> Applied:
        """As the method inside."""
        return self.method.apply(self.told(workspace), prepared, model, removal)
