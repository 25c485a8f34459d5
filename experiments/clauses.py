"""Contract clauses of one label each, as rows of numbered words: a stand-in for LEDGAR, not LEDGAR itself."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from excise.datasets.ledgar import PROTOTYPES, load_stand_in

WORDS, LENGTH = 2000, 64
PADDING, UNKNOWN = 0, 1


def load_clauses(folder: Path, *, train: int, seed: int) -> tuple[TensorDataset, TensorDataset]:
    """So many clauses to train on, and the others; the vocabulary is that of those to train on."""
    found = [one for one in load_stand_in(folder) if len(one.labels) == 1]
    order = np.random.default_rng(seed).permutation(len(found))
    texts = [_words(found[place].text) for place in order]
    classes = torch.tensor([PROTOTYPES.index(found[place].labels[0]) for place in order])
    common = Counter(word for text in texts[:train] for word in text).most_common(WORDS - 2)
    numbers = {word: number for number, (word, _) in enumerate(common, start=2)}
    rows = torch.stack([_row(text, numbers) for text in texts])
    return TensorDataset(rows[:train], classes[:train]), TensorDataset(rows[train:], classes[train:])


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())[:LENGTH]


def _row(text: list[str], numbers: dict[str, int]) -> Tensor:
    row = torch.full((LENGTH,), PADDING)
    row[: len(text)] = torch.tensor([numbers.get(word, UNKNOWN) for word in text], dtype=torch.long)
    return row
