"""Figure "spurious": a classifier that shall not see outside factors, regularised against all, some, or L-FOCI's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from excise.networks.small import seeded
from excise.reproduce.framework.experiment import Measured
from excise.reproduce.framework.run import Run
from excise.reproduce.parts.attributed import Attributed, Attributes, Digits, attributes_of, faces
from excise.reproduce.studies.spurious.network import Regularised, ramp
from excise.statistics.foci import lfoci

NONE, ALL, RANDOM, FOCI = "no factor", "all factors", "random factors", "L-FOCI's factors"
SELECTIONS = (NONE, ALL, RANDOM, FOCI)
FEWEST = 20  # samples of a group whose accuracy is worth a figure


@dataclass(frozen=True)
class Settings:
    """Of this experiment; the paper names the data, the label and the means, and no figures."""

    images: str = "digits"
    """``"faces"``, CelebA's own images, or ``"digits"``, which stand in for them."""
    label: str = "No_Beard"
    train: int = 4000
    validation: int = 2000
    side: int = 32
    """Of an image, in pixels; digits have 32."""
    searched: int = 202_599
    """Rows of the table that L-FOCI reads: all."""
    runs: int = 5
    strengths: tuple[float, ...] = (0.01, 0.03, 0.1)
    """Of the reversed gradient, for each factor, at the end of training; the bars are for the one in the middle."""
    epochs: int = 8
    batch_size: int = 64
    learning_rate: float = 0.001
    heads_learning_rate: float = 0.01
    """Of the factors' heads, which must keep up with features that run away from them."""

    @property
    def strength(self) -> float:
        """The one that is shown factor by factor."""
        return self.strengths[len(self.strengths) // 2]


@dataclass(frozen=True)
class Sets:
    """What one run trains on and is measured on."""

    train: Attributed
    validation: Attributed
    shifted: Attributed | None
    """The same digits with the factors of other rows: there they say nothing about the label."""


def train(data: Attributed, chosen: Sequence[int], strength: float, settings: Settings, *, seed: int) -> Regularised:
    """Train for the label and against the chosen factors: the sum of all their losses, as the paper's objective."""
    with seeded(seed):
        model = Regularised(len(chosen))
    optimizer = torch.optim.Adam(
        [
            {"params": [*model.features.parameters(), *model.label.parameters()], "lr": settings.learning_rate},
            {"params": list(model.factors.parameters()) if model.factors else [], "lr": settings.heads_learning_rate},
        ]
    )
    generator = torch.Generator().manual_seed(seed)
    factors = data.factors[:, list(chosen)]
    batches = [
        batch
        for _ in range(settings.epochs)
        for batch in torch.randperm(len(data.labels), generator=generator).split(settings.batch_size)
    ]
    for done, batch in enumerate(batches):
        label, others = model(data.images[batch], strength * ramp(done / len(batches)))
        loss = F.binary_cross_entropy_with_logits(label, data.labels[batch])
        if others is not None:
            loss = loss + len(chosen) * F.binary_cross_entropy_with_logits(others, factors[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def measure(run: Run[Settings]) -> Measured:
    """Validation accuracies with and without each factor, for every selection of factors and every strength."""
    settings = run.settings
    table = attributes_of(run.data_dir / "celeba", settings.label)
    digits = None if settings.images == "faces" else Digits.load(run.data_dir / "mnist")
    found = [_one_run(run, table, digits, number) for number in range(settings.runs)]
    return {
        "label": settings.label,
        "factors": list(table.names),
        "correlation": [round(float(r), 4) for r in _correlations(table)],
        "strengths": list(settings.strengths),
        "strength": settings.strength,
        "chosen": [one["chosen"] for one in found],
        "counts": found[0]["counts"],
        "with": {name: [one["shown"][name]["with"] for one in found] for name in SELECTIONS},
        "without": {name: [one["shown"][name]["without"] for one in found] for name in SELECTIONS},
        "scores": {
            score: {name: [one["scores"][score][name] for one in found] for name in SELECTIONS}
            for score in found[0]["scores"]
        },
    }


def _one_run(run: Run[Settings], table: Attributes, digits: Digits | None, number: int) -> dict[str, Any]:
    """All trainings of a run begin with the same weights and see the same batches."""
    settings = run.settings
    rng = np.random.default_rng([run.seed, number])
    sets = _sets(run, table, digits, rng)
    seed = int(rng.integers(2**31))
    foci = run.step(f"run {number}, L-FOCI", partial(_blanket, table, settings.searched, seed))
    subset = sorted(rng.permutation(len(table.names))[: len(foci)].tolist())
    chosen = {NONE: [], ALL: list(range(len(table.names))), RANDOM: subset, FOCI: foci}
    outcomes = {
        (name, strength): run.step(
            f"run {number}, {name}" + (f", strength {strength:g}" if chosen[name] else ""),
            partial(_accuracies, sets, chosen[name], strength, settings, seed),
        )
        for name in SELECTIONS
        for strength in (settings.strengths if chosen[name] else settings.strengths[:1])
    }

    def outcome(name: str, strength: float) -> dict[str, Any]:
        found: dict[str, Any] = outcomes[name, strength if chosen[name] else settings.strengths[0]]
        return found

    any_one = outcome(NONE, settings.strength)
    return {
        "chosen": {name: [table.names[i] for i in ids] for name, ids in chosen.items() if name in (RANDOM, FOCI)},
        "counts": [int(n) for n in sets.validation.factors.sum(0)],
        "shown": {name: outcome(name, settings.strength) for name in SELECTIONS},
        "scores": {
            score: {name: [outcome(name, strength)[score] for strength in settings.strengths] for name in SELECTIONS}
            for score in any_one
            if score not in ("with", "without")
        },
    }


def _sets(run: Run[Settings], table: Attributes, digits: Digits | None, rng: np.random.Generator) -> Sets:
    settings = run.settings
    rows = rng.permutation(len(table.labels))
    rows, held_out = rows[: settings.train], rows[settings.train : settings.train + settings.validation]
    if digits is None:
        of_rows = partial(faces, run.data_dir / "celeba", table, side=settings.side)
        return Sets(of_rows(np.sort(rows)), of_rows(np.sort(held_out)), None)
    known, new = table[rows], table[held_out]
    shifted = Attributes(new.labels, rng.permutation(new.factors), new.names)
    return Sets(*digits.drawn([known, new, shifted], rng))


def _blanket(table: Attributes, searched: int, seed: int) -> list[int]:
    """The factors that L-FOCI finds in the table, in the order of choice."""
    rows = table[np.arange(searched)]
    return [int(i) for i in lfoci(rows.factors.astype(float), rows.labels.astype(float), random_state=seed).indices]


def _accuracies(sets: Sets, chosen: list[int], strength: float, settings: Settings, seed: int) -> dict[str, Any]:
    model = train(sets.train, chosen, strength, settings, seed=seed)
    right = is_right(model, sets.validation)
    found = {**group_accuracies(right, sets.validation), "label known": _label_known(right, sets.validation)}
    if sets.shifted is not None:
        found["shifted"] = _label_known(is_right(model, sets.shifted), sets.shifted)
    return found


def is_right(model: Regularised, data: Attributed) -> NDArray[np.bool_]:
    """For each image, whether its label is told."""
    with torch.no_grad():
        logits = torch.cat([model(images)[0] for images in data.images.split(500)])
    right: NDArray[np.bool_] = ((logits > 0) == (data.labels > 0)).numpy()
    return right


def group_accuracies(right: NDArray[np.bool_], data: Attributed) -> dict[str, Any]:
    """Accuracy overall, with and without each factor (None for fewer than 20 samples), and of the worst groups."""
    has, label = data.factors.numpy() > 0, data.labels.numpy() > 0
    with_it = [_accuracy(right[column]) for column in has.T]
    without = [_accuracy(right[~column]) for column in has.T]
    cells = [
        _accuracy(right[(label == truth) & (column == on)]) for column in has.T for truth in (0, 1) for on in (0, 1)
    ]
    pairs = [(a, b) for a, b in zip(with_it, without, strict=True) if a is not None and b is not None]
    return {
        "with": with_it,
        "without": without,
        "overall": _accuracy(right),
        "gap": round(float(np.mean([abs(a - b) for a, b in pairs])), 4),
        "worst group": min(min(pair) for pair in pairs),
        "worst cell": min(cell for cell in cells if cell is not None),
    }


def _accuracy(right: NDArray[np.bool_]) -> float | None:
    return round(float(right.mean()), 4) if len(right) >= FEWEST else None


def _label_known(right: NDArray[np.bool_], data: Attributed) -> float:
    """The mean of the accuracies with and without the label: 0.5 for one that always says the same."""
    label = data.labels.numpy() > 0
    return round(float((right[label].mean() + right[~label].mean()) / 2), 4)


def _correlations(table: Attributes) -> NDArray[np.float64]:
    """Of each factor with the label."""
    table_of_all = np.corrcoef(np.column_stack([table.factors, table.labels]), rowvar=False)
    found: NDArray[np.float64] = np.asarray(table_of_all)[-1, :-1]
    return found
