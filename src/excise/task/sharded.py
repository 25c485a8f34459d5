"""Models whose weights are sharded by FSDP2 (``fully_shard``): each process has a part of every parameter.

Such a model can't be copied, and its parameters are whole only while they are used. All processes run it together, on
the same samples, and a parameter is put together in one place only for as long as its layer is worked on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from excise import processes
from excise.errors import NotYetSupportedError

if TYPE_CHECKING:
    from excise.task.task import Task

HOW_TO_SAVE = (
    "save it by torch.distributed.checkpoint, or put it together by get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True, cpu_offload=True)) of torch.distributed.checkpoint.state_dict"
)


def is_sharded(model: nn.Module) -> bool:
    """Whether some parameters are ``DTensor``, as ``fully_shard`` makes them."""
    return any(hasattr(weight, "device_mesh") for weight in model.parameters())


def refuse_sharded(model: nn.Module, what: str) -> None:
    """Refuse what needs the model in one place."""
    if is_sharded(model):
        raise NotYetSupportedError(
            f"{what} needs the whole model in each process, and this one is sharded; Unlearner(task, Step()) works on "
            f"its shards. For the rest {HOW_TO_SAVE}, and load the weights into a model that is not sharded."
        )


def resharded(model: nn.Module) -> nn.Module:
    """The same model, with each process holding its own part of the parameters alone, as between two passes."""
    for part in model.modules():
        reshard: Any = getattr(part, "reshard", None)
        if hasattr(part, "set_reshard_after_forward"):  # of FSDPModule
            reshard()
    return model


def require_one_axis(model: nn.Module) -> None:
    """Refuse parameters that are spread over processes otherwise than in one piece for each of all processes."""
    group = processes.working_group()
    for name, weight in resharded(model).named_parameters():
        mesh: Any = getattr(weight, "device_mesh", None)
        if mesh is None:
            continue
        kinds = [type(one).__name__ for one in weight.placements]  # type: ignore[attr-defined]
        if kinds != ["Shard"] or group is None or mesh.size() != group.size:
            raise NotYetSupportedError(
                f"model has {name} spread over processes as {kinds} on {mesh.size()} of them, which can't be updated "
                "yet; call fully_shard without a mesh, so that all processes share every parameter."
            )


def shapes_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters without their values, for who asks for shapes alone."""
    return {
        name: torch.empty(weight.shape, dtype=weight.dtype, device="meta") for name, weight in model.named_parameters()
    }


def whole(tensor: Tensor) -> Tensor:
    """A parameter or gradient in one place, on every process; all of them must ask."""
    full: Any = getattr(tensor, "full_tensor", None)
    return tensor.detach() if full is None else full().detach()


def own_part(tensor: Tensor) -> Tensor:
    """What of a parameter this process has, which it can change in place."""
    local: Any = getattr(tensor, "to_local", None)
    return tensor.detach() if local is None else local().detach()


def part_like(full: Tensor, parameter: Tensor) -> Tensor:
    """What of a tensor in one place belongs to this process, as with the parameter."""
    mesh: Any = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return full
    axis = parameter.placements[0].dim  # type: ignore[attr-defined]
    pieces = full.chunk(mesh.size(), dim=axis)
    place = mesh.get_local_rank()
    return pieces[place] if place < len(pieces) else full.narrow(axis, 0, 0)


def without_gradients(model: nn.Module) -> None:
    """Let go of all gradients; after a pass some parameters may be whole, and their parts have gradients as well."""
    model.zero_grad()
    resharded(model).zero_grad()


def backwards(task: Task, model: nn.Module, ids: Sequence[int] | Tensor) -> None:
    """Put Σ ∇ℓ over samples into the parameters' gradients, of which each process gets its part."""
    without_gradients(model)
    size = max(1, task.batch_size_within_memory(256) // processes.shards())
    with torch.enable_grad():
        for batch in task.batches(ids, size):
            task.losses(model, batch).sum().backward()


def gradient_norm(task: Task, model: nn.Module, ids: Sequence[int] | Tensor) -> float:
    """‖∇F‖ over the samples; all processes must ask, and run the model on the same ones."""
    backwards(task, model, ids)
    mass = task.mass(ids)
    squares = 0.0
    for weight in _trained(model).values():
        data = 0.0 if weight.grad is None else own_part(weight.grad).double() / mass
        squares += _squares(data + task.weight_decay * own_part(weight).double(), weight)
    without_gradients(model)
    return _root_of_sum(squares)


def weights_norm(model: nn.Module) -> float:
    """Length of all trained weights."""
    return _root_of_sum(sum(_squares(own_part(weight).double(), weight) for weight in _trained(model).values()))


def _squares(values: Tensor, weight: Tensor) -> float:
    """Their sum; of a parameter that all processes have as a whole, this one's share of it."""
    return float(values.square().sum()) / (1 if hasattr(weight, "device_mesh") else processes.shards())


def _root_of_sum(squares: float) -> float:
    with processes.across():
        return math.sqrt(float(processes.total([torch.tensor([squares], dtype=torch.double)], "squares of parts")[0]))


@contextmanager
def restored_after_error(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Copies of this process's parts of all trained parameters, which are put back if anything goes wrong inside."""
    start = {name: own_part(weight).clone() for name, weight in _trained(model).items()}
    try:
        yield start
    except BaseException:
        set_parts(model, start)
        raise


def set_parts(model: nn.Module, parts: dict[str, Tensor]) -> None:
    """Set this process's parts of parameters."""
    with torch.no_grad():
        for name, weight in _trained(model).items():
            own_part(weight).copy_(parts[name])


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight for name, weight in resharded(model).named_parameters() if weight.requires_grad}
