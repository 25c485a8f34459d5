"""What a frozen network says of each sample, kept in a file by the samples' contents, so that it runs once for each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from excise._support.files import whole_file
from excise.errors import warn
from excise.task.fingerprint import sample_digest
from excise.task.hashing import described, update
from excise.task.task import Task
from excise.training.model_cache import DamagedWarning

HASH = 32  # bytes of SHA-256
Kept = dict[bytes, list[Tensor]]
"""Embedding and target by the hash of the sample."""


def _outline(name: str, module: nn.Module) -> list[object]:
    """What of a module decides its outputs besides its weights: its type, code and plain attributes."""
    public = {key: value for key, value in vars(module).items() if key[0] != "_" and key != "training"}
    plain = {key: value for key, value in public.items() if isinstance(value, bool | int | float | str)}
    return [name, type(module).__module__, type(module).__qualname__, module.extra_repr(), plain, type(module).forward]


@dataclass(frozen=True)
class EmbeddingFile:
    """Embeddings and targets under the hashes of their samples. It is as secret as the samples are."""

    path: Path

    @staticmethod
    def of(task: Task, layer: nn.Linear, folder: str | Path) -> EmbeddingFile:
        """The one for a network: another name for other weights or another way to call it."""
        digest, own = hashlib.sha256(), {id(weight) for weight in layer.parameters()}
        for name, tensor in sorted(task.model.state_dict(keep_vars=True).items()):
            if id(tensor) not in own:
                update(digest, name)
                update(digest, tensor.detach())
        parts = [_outline(name, module) for name, module in task.model.named_modules() if module is not layer]
        update(digest, repr(described([parts, task.forward, task.collate])))
        return EmbeddingFile(Path(folder).expanduser() / f"embeddings-{digest.hexdigest()[:24]}.safetensors")

    def read(self) -> Kept:
        """All that is kept; nothing where there is no file, or, with a warning, where it is damaged."""
        if not self.path.is_file():
            return {}
        try:
            found = load_file(self.path)
            hashes, values, targets = found["hashes"], found["embeddings"], found["targets"]
            if hashes.shape != (len(values), HASH) or len(targets) != len(values):
                raise ValueError("hashes, embeddings and targets do not fit")
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            warn(f"{self.path}: is damaged ({error}), so the samples are embedded anew.", DamagedWarning)
            return {}
        return {bytes(one): pair for one, *pair in zip(hashes.numpy(), values, targets, strict=True)}

    def write(self, kept: Kept) -> None:
        """Keep these and no others, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not kept:
            self.path.unlink(missing_ok=True)
            return
        hashes = torch.from_numpy(np.frombuffer(b"".join(kept), dtype=np.uint8).reshape(-1, HASH).copy())
        values, targets = (torch.stack(part) for part in zip(*kept.values(), strict=True))
        with whole_file(self.path, mode=0o600) as draft:
            save_file({"hashes": hashes, "embeddings": values, "targets": targets}, draft)

    def purge(self, task: Task, gone: Sequence[int], left: Sequence[int]) -> int:
        """Take out the embeddings of samples that are gone; those that a retained sample shares stay. How many went."""
        kept = self.read()
        needed = {sample_digest(task, place) for place in left} if kept else set()
        wanted = {sample_digest(task, place) for place in gone} - needed
        left_over = {key: value for key, value in kept.items() if key not in wanted}
        if len(left_over) < len(kept):
            self.write(left_over)
        return len(kept) - len(left_over)
