"""Reading and writing a model's weights, by formats that can hold nothing but numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from excise.errors import InputError

TORCH = {".pt", ".pth", ".bin"}


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a .safetensors or a plain .pt file into the model."""
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        elif path.suffix in TORCH:
            state = torch.load(path, map_location="cpu", weights_only=True)
        else:
            raise InputError(f"{path}: weights are read from .safetensors or .pt files.")
    except InputError:
        raise
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"{path}: could not be read ({str(error).splitlines()[0]}).") from None
    except Exception as error:  # UnpicklingError where a file holds more than weights, others where it is none
        if type(error).__name__ != "UnpicklingError":
            raise InputError(f"{path}: could not be read as weights ({type(error).__name__}).") from None
        raise InputError(f"{path}: holds more than weights, and is not read for safety; save its state dict.") from None
    _fill(model, state, path)


def portable_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the state dict as files hold it: on the CPU, each tensor by itself."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the model's weights; the ending says how."""
    state = portable_state(model)
    if path.suffix not in TORCH | {".safetensors"}:
        raise InputError(f"{path}: weights are written to .safetensors or .pt files.")
    try:
        if path.suffix == ".safetensors":
            save_file(state, path)
        else:
            torch.save(state, path)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(f"{path}: could not be written ({str(error).splitlines()[0]}).") from None


def _fill(model: nn.Module, state: object, path: Path) -> None:
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise InputError(f"{path}: is not a state dict, which maps names to tensors.")
    wanted = model.state_dict()
    missing, unknown = wanted.keys() - state.keys(), state.keys() - wanted.keys()
    shapes = [name for name in wanted.keys() & state.keys() if wanted[name].shape != state[name].shape]
    for what, names in (("lacks", missing), ("has unknown", unknown), ("has another shape for", shapes)):
        if names:
            raise InputError(f"{path}: {what} {', '.join(sorted(names)[:5])}; is it the weights of this model?")
    model.load_state_dict(state)
