"""What is kept of one model of a population: its margins, how often it is right, and what making it took."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from excise._support.claims import claim
from excise._support.files import whole_file
from excise.errors import warn
from excise.evidence.population.margins import Floats
from excise.training.model_cache import DamagedWarning

GROUPS = ("forget", "retain", "test")
FIGURES = ("seconds", "preparation", "refused")


@dataclass(frozen=True)
class Piece:
    """One model, seen from outside."""

    margins: dict[str, Floats]
    """Of forgotten, retained and test samples."""
    accuracies: dict[str, float]
    """On the same."""
    seconds: float
    """What training it, or the request, took."""
    preparation: float = 0.0
    """What was made once for all requests, before."""
    refused: float = 0.0
    """1 where the method refused the request, so that the model is the original."""


def made_once(file: Path, samples: dict[str, int], make: Callable[[], Piece]) -> Piece | None:
    """The piece from its file, or made now and kept; None while another process is making it."""
    found = read(file, samples)
    if found is not None:
        return found
    with claim(file) as mine:
        if not mine:
            return None
        found = read(file, samples)  # another process may have been quicker
        if found is None:
            found = make()
            write(file, found)
        return found


def write(file: Path, piece: Piece) -> None:
    """Keep a piece, whole or not at all."""
    figures = {name: getattr(piece, name) for name in FIGURES} | {"accuracies": piece.accuracies}
    with whole_file(file) as draft:
        arrays: dict[str, Any] = {f"margins_{name}": piece.margins[name] for name in GROUPS}
        np.savez(draft, figures=json.dumps(figures), **arrays)


def read(file: Path, samples: dict[str, int]) -> Piece | None:
    """What was kept; None if there is no such file, or, with a warning, if it is damaged."""
    if not file.is_file():
        return None
    try:
        with np.load(file, allow_pickle=False) as opened:
            figures = json.loads(str(opened["figures"]))
            margins = {name: np.asarray(opened[f"margins_{name}"], dtype=np.float64) for name in GROUPS}
        return _sound(margins, figures, samples)
    except Exception as error:  # numpy's reader raises whatever a damaged file makes it trip over
        warn(f"{file}: is damaged ({error}), so this model is made anew.", DamagedWarning)
        return None


def _sound(margins: dict[str, Floats], figures: dict[str, Any], samples: dict[str, int]) -> Piece:
    """A piece with as many finite margins as there are samples, or an error."""
    for name, values in margins.items():
        if values.shape != (samples[name],) or not np.isfinite(values).all():
            raise ValueError(f"its margins of {name} samples are not {samples[name]} finite numbers")
    accuracies = {name: float(figures["accuracies"][name]) for name in GROUPS}
    return Piece(margins, accuracies, *(float(figures[name]) for name in FIGURES))
