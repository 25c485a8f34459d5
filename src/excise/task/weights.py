"""Reading and writing a model's weights, by formats that can hold nothing but numbers."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from excise._support.files import whole_file
from excise._support.reading import reason, require_regular_file
from excise.errors import InputError
from excise.task.sharded import refuse_sharded
from excise.task.wrapping import without_prefixes

TORCH = {".pt", ".pth", ".bin"}
RECORD = "excise"  # in the metadata of safetensors


def load_weights(model: nn.Module, path: Path) -> dict[str, Any] | None:
    """Put the weights of a .safetensors or a plain .pt file into the model.

    Gives the record that ``save_weights`` wrote with them, None where there is none. After an error the model is as it
    was.
    """
    require_regular_file(path)
    record = None
    try:
        if path.suffix == ".safetensors":
            state, record = load_file(path), _record_in(path)
        elif path.suffix in TORCH:
            state = torch.load(path, map_location="cpu", weights_only=True)
        else:
            raise InputError(f"{path}: weights are read from .safetensors or .pt files.")
    except InputError:
        raise
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"{path}: could not be read ({reason(error)}).") from None
    except MemoryError:
        raise
    except Exception as error:  # UnpicklingError where a file holds more than weights, others where it is none
        if type(error).__name__ != "UnpicklingError":
            raise InputError(f"{path}: could not be read as weights ({type(error).__name__}).") from None
        raise InputError(f"{path}: holds more than weights, and is not read for safety; save its state dict.") from None
    _fill(model, state, path)
    return record


def _record_in(path: Path) -> dict[str, Any] | None:
    with safe_open(path, framework="pt") as opened:
        text = (opened.metadata() or {}).get(RECORD)
    if text is None:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise InputError(f"{path}: its record of what is forgotten is damaged; name that by --forgotten or forgotten=.")
    return record


def portable_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the state dict as files hold it: on the CPU, each tensor by itself."""
    refuse_sharded(model, "a file of weights")
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}


def save_weights(model: nn.Module, path: Path, *, record: Mapping[str, Any] | None = None) -> None:
    """Write the model's weights; the ending says how. A record of plain values goes along, in .safetensors only."""
    state = portable_state(model)
    if path.suffix not in TORCH | {".safetensors"}:
        raise InputError(f"{path}: weights are written to .safetensors or .pt files.")
    try:
        with whole_file(path) as draft:
            if path.suffix == ".safetensors":
                save_file(state, draft, None if record is None else {RECORD: json.dumps(record, allow_nan=False)})
            else:
                with draft.open("wb") as file:  # given a name, torch does not say why it can't be written
                    torch.save(state, file)
    except (SafetensorError, RuntimeError) as error:
        raise InputError(f"{path}: could not be written ({_why_not_written(error)}).") from None


def _why_not_written(error: BaseException) -> str:
    """Why a library could not write; an interrupt that it took for an error goes on its way."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt | MemoryError):
            raise cause from None
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    return reason(error)


def _fill(model: nn.Module, state: object, path: Path) -> None:
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()
    ):
        raise InputError(f"{path}: is not a state dict, which maps names to tensors.")
    wanted = model.state_dict()
    state = without_prefixes(state, wanted)
    missing, unknown = wanted.keys() - state.keys(), state.keys() - wanted.keys()
    shapes = [name for name in wanted.keys() & state.keys() if wanted[name].shape != state[name].shape]
    for what, names in (("lacks", missing), ("has unknown", unknown), ("has another shape for", shapes)):
        if names:
            raise InputError(f"{path}: {what} {', '.join(sorted(names)[:5])}; is it the weights of this model?")
    for name, tensor in wanted.items():
        _require_alike(tensor, state[name], f"{path}: {name}")
    model.load_state_dict(state)


def _require_alike(wanted: Tensor, given: Tensor, whose: str) -> None:
    """Refuse what would have to be made another kind of number, or holds none."""
    if given.layout != torch.strided or given.is_meta or given.is_quantized:
        what = "has no values" if given.is_meta else "is quantized" if given.is_quantized else f"is {given.layout}"
        raise InputError(f"{whose} {what}; save plain dense weights, as model.state_dict() of a usual model has them.")
    if _kind(wanted) != _kind(given):
        raise InputError(
            f"{whose} is {given.dtype} where the model has {wanted.dtype}; is it the weights of this model?"
        )


def _kind(tensor: Tensor) -> str:
    dtype = tensor.dtype
    if dtype == torch.bool:
        return "truth"
    return "real" if dtype.is_floating_point else "complex" if dtype.is_complex else "whole"


def with_weights(like: nn.Module, state: Any) -> nn.Module:
    """A copy of a model with the weights of a state dict."""
    model = copy.deepcopy(like)
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError, KeyError):
        raise InputError("state has the weights of another architecture than task.model, or is damaged.") from None
    return model
