"""Figure "spurious": a classifier that shall not see outside factors, regularised against all, some, or L-FOCI's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from excise.networks.small import seeded
from excise.reproduce.attributed import Attributed, Attributes, Digits, attributes_of, faces
from excise.reproduce.experiment import Claim, Experiment, Measured, Verdict, clearly_above, judged
from excise.reproduce.plots import band, tidy
from excise.reproduce.run import Run
from excise.selection import lfoci

NONE, ALL, RANDOM, FOCI = "no factor", "all factors", "random factors", "L-FOCI's factors"
SELECTIONS = (NONE, ALL, RANDOM, FOCI)
COLOURS = {NONE: "#222222", ALL: "#d1495b", RANDOM: "#b08900", FOCI: "#1f77b4"}
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


# ---------------------------------------------------------------------------------------------------- the network


class _Reversal(torch.autograd.Function):
    """Nothing on the way forward; on the way back, the gradient is turned round and scaled."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradients[0], None


def reverse_gradient(features: Tensor, strength: float) -> Tensor:
    """The features, whose gradient comes back with the opposite sign (Ganin and Lempitsky, 2015).

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> reverse_gradient(x, 0.5).square().backward()  # 2x, were it not reversed
    >>> x.grad.item()
    -3.0
    """
    reversed_: Tensor = _Reversal.apply(features, strength)  # type: ignore[no-untyped-call]
    return reversed_


class Regularised(nn.Module):
    """A small convolutional network with a logistic head for the label, and one for every factor to be forgotten.

    The heads of the factors learn to tell them from the features; the features learn to be of no use to these heads.
    """

    def __init__(self, factors: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(8),
            nn.Flatten(),
            nn.Linear(16 * 8 * 8, 32),
            nn.ReLU(),
        )
        self.label = nn.Linear(32, 1)
        self.factors = nn.Linear(32, factors) if factors else None

    def forward(self, images: Tensor, strength: float = 0.0) -> tuple[Tensor, Tensor | None]:
        """The logits of the label (n,) and of the factors (n, factors), for images of bytes."""
        features = self.features(images.float() / 127.5 - 1)
        label = self.label(features)[:, 0]
        return label, None if self.factors is None else self.factors(reverse_gradient(features, strength))


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


def ramp(done: float) -> float:
    """From 0 at the start of training to 1 at its end, as is usual for gradient reversal: features come first.

    >>> ramp(0.0), round(ramp(0.5), 3), round(ramp(1.0), 3)
    (0.0, 0.987, 1.0)
    """
    return 2 / (1 + math.exp(-10 * done)) - 1


# ---------------------------------------------------------------------------------------------------- measuring


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


# ---------------------------------------------------------------------------------------------------- showing


def draw(measured: Measured, figure: Any) -> None:
    """The paper's bars, one panel a selection; below them, how the choice of the strength matters."""
    above, below = figure.subfigures(2, 1, height_ratios=(3.4, 1))
    _draw_bars(measured, above)
    _draw_strengths(measured, below)


def _draw_bars(measured: Measured, figure: Any) -> None:
    """Green with the factor, red without; the most correlated factor on top."""
    order = np.argsort(np.abs(measured["correlation"]))
    often = [factor for factor in measured["factors"] if _times_chosen(measured, factor) * 2 > len(measured["chosen"])]
    names = [f"{factor} *" if (factor := measured["factors"][i]) in often else factor for i in order]
    panels = figure.subplots(1, len(SELECTIONS), sharey=True)
    for axes, selection in zip(panels, SELECTIONS, strict=True):
        for shift, side, colour in ((0.2, "with", "#3f9b5b"), (-0.2, "without", "#c8443c")):
            mean, spread = _over_runs(measured[side][selection])
            at = np.arange(len(order)) + shift
            bars = {"height": 0.4, "color": colour, "label": f"{side} the factor"}
            axes.barh(at, mean[order], xerr=spread[order], error_kw={"linewidth": 0.6, "ecolor": "0.25"}, **bars)
        overall = np.mean([run[_shown(measured)] for run in measured["scores"]["overall"][selection]])
        axes.axvline(overall, color="0.2", linewidth=0.8, linestyle=":")
        tidy(axes, x="validation accuracy", y="", title=f"against {selection}: {overall:.3f}")
        axes.set_xlim(0, 1)
        axes.margins(y=0.005)
    panels[0].set_yticks(range(len(order)), names, fontsize=6.5)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper right", ncols=2, fontsize=8, frameon=False)


def _draw_strengths(measured: Measured, figure: Any) -> None:
    titles = {
        "overall": "validation accuracy",
        "worst group": "its lowest, with/without a factor",
        "shifted": "factors shuffled, mean of both labels",
    }
    titles = {score: title for score, title in titles.items() if score in measured["scores"]}
    for axes, (score, title) in zip(np.atleast_1d(figure.subplots(1, len(titles))), titles.items(), strict=True):
        for selection in SELECTIONS:
            line: dict[str, Any] = {"color": COLOURS[selection], "linestyle": "-:"[selection == NONE], "marker": "."}
            band(axes, measured["strengths"], measured["scores"][score][selection], f"against {selection}", **line)
        axes.set_xscale("log")
        axes.set_xticks(measured["strengths"], [f"{strength:g}" for strength in measured["strengths"]])
        axes.minorticks_off()
        tidy(axes, x="strength of the reversed gradient", y="accuracy", title=title)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)


def _shown(measured: Measured) -> int:
    """The position of the strength whose figures are shown factor by factor."""
    return int(measured["strengths"].index(measured["strength"]))


def _times_chosen(measured: Measured, factor: str) -> int:
    return sum(factor in run[FOCI] for run in measured["chosen"])


def _over_runs(runs: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each column; runs without a figure are left out, and 0 stands for none at all."""
    values: Any = np.ma.masked_invalid(np.asarray(runs, dtype=float))
    return values.mean(axis=0).filled(0.0), values.std(axis=0).filled(0.0)


RULE = "Confirmed if it is better than all and than random factors, by two standard errors of the differences."


def judge(measured: Measured) -> list[Claim]:
    """Best means: above both others by more than two standard errors of the paired differences over the runs."""
    shown = _shown(measured)
    overall = {name: np.asarray(runs)[:, shown] for name, runs in measured["scores"]["overall"].items()}
    lower = {name: lower_accuracies(measured, name) for name in SELECTIONS}
    often = sorted(measured["factors"], key=lambda factor: -_times_chosen(measured, factor))
    counts = ", ".join(f"{factor} {n}" for factor in often if (n := _times_chosen(measured, factor)))
    claims = [
        Claim(
            "regularising with FOCI's factors keeps the overall accuracy high, and gives the best result of all, a "
            "random subset and FOCI",
            f"overall {_listed(overall)}; {_by_strength(measured, 'overall')}",
            _best(overall),
            f"L-FOCI's factors over {len(measured['chosen'])} runs: {counts}. They are the ones that the label is told "
            "by, so features that hide them have to hide a part of the label; few random factors are. "
            f"{RULE}",
        ),
        Claim(
            "FOCI preserves high accuracy on the samples with and without correlated attributes, best of the three",
            f"the lower of the two accuracies, mean over the factors with a correlation of 0.1 or more: "
            f"{_listed(lower)}",
            _best(lower),
            RULE,
        ),
        Claim(
            "regularising over a large number of outside factors can adversely affect training",
            f"against all {len(measured['factors'])}: {overall[ALL].mean():.3f} overall, "
            f"{overall[NONE].mean():.3f} without regularisation",
            judged(clearly_above(overall[NONE], overall[ALL])),
            "Confirmed if none is better than all by two standard errors.",
        ),
    ]
    if "shifted" not in measured["scores"]:
        return claims
    shifted = {name: np.asarray(runs)[:, shown] for name, runs in measured["scores"]["shifted"].items()}
    helped = clearly_above(shifted[FOCI], shifted[NONE]) and not clearly_above(shifted[ALL], shifted[FOCI])
    return [
        *claims,
        Claim(
            "it is only necessary to include regularisers over the factors in the Markov blanket",
            f"where factors say nothing about the label any more: {_listed(shifted)} (mean of both labels; 0.5 is "
            f"chance); {_by_strength(measured, 'shifted')}",
            judged(helped),
            "Confirmed if L-FOCI's is better than none, and all of them not better than L-FOCI's, by two standard "
            "errors of the differences. The factors left out are correlated with the label too, and nothing keeps the "
            "network from using them.",
        ),
    ]


def lower_accuracies(measured: Measured, selection: str) -> NDArray[np.float64]:
    """For each run, the lower of the accuracies with and without a factor, mean over the correlated factors."""
    correlated = np.abs(measured["correlation"]) >= 0.1
    both = np.asarray([measured[side][selection] for side in ("with", "without")], dtype=float)
    lower: NDArray[np.float64] = np.nanmean(both.min(axis=0)[:, correlated], axis=1)
    return lower


def _best(scores: dict[str, NDArray[np.float64]]) -> Verdict:
    return judged(all(clearly_above(scores[FOCI], scores[other]) for other in (ALL, RANDOM)))


def _listed(scores: dict[str, NDArray[np.float64]]) -> str:
    return ", ".join(f"{name} {values.mean():.3f} ± {values.std():.3f}" for name, values in scores.items())


def _by_strength(measured: Measured, score: str) -> str:
    """The means at the other strengths."""
    means = {name: np.mean(runs, axis=0) for name, runs in measured["scores"][score].items() if name != NONE}
    return (
        "; ".join(
            f"at strength {strength:g}: " + ", ".join(f"{mean[at]:.3f}" for mean in means.values())
            for at, strength in enumerate(measured["strengths"])
            if strength != measured["strength"]
        )
        + f" ({', '.join(means)})"
    )


EXPERIMENT = Experiment(
    name="spurious",
    title="regularising against outside factors",
    where="Figure 4 (spurious feature regularisation)",
    data="digits of MNIST that carry the attributes of CelebA's faces, a stand-in for the faces",
    published=Settings(images="faces", train=162_770, validation=19_867, side=64),
    settings=Settings(),
    quick=Settings(train=256, validation=200, searched=5000, runs=2, strengths=(0.03,), epochs=1),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
The faces' images are not part of this project's data, so each face is a digit of MNIST instead, a nine where it has no
beard and a four where it has one, and each of its 39 other attributes, by CelebA's own table, switches a change of the
picture on: a coloured mark on the rim for 28 of them, and for the rest thicker strokes, a slant, red or dimmer ink, a
blue or lighter background, stripes, a bar, a red cast, grain or blur. Label and factors are thus correlated as in
CelebA, and, unlike there, none of the factors is a part of what the label means. With CelebA's images in
`celeba/img_align_celeba`, `--paper-scale` does the same with the faces (random rows, as many as in the official split).
The paper gives no sizes; those named as its own below are the official split's, and 64 pixels are our choice.

The network has two convolutions and 32 features, a logistic head for the label and, behind a gradient reversal layer,
one for every factor it is regularised against; the losses are summed, as the paper's objective has it. L-FOCI reads the
whole table; the random subset is of the size of L-FOCI's. The paper states neither network nor strength: the strength
rises during training, as is usual, and three of them are measured, from one that hardly matters to one that ruins the
label; these and the heads' learning rate were chosen with other seeds. Bars are means over runs with one standard
deviation, green with the factor and red without, sorted by correlation with the label, and the overall accuracy stands
above them; a star marks what L-FOCI chose in most runs. The leftmost panel, which the paper does not show, is the same
network without regularisation: any claim that regularisation preserves accuracy has to be read against it.

The validation set of the paper's figure has the correlations of the training set, so a network that uses spurious
factors loses nothing there. What regularisation is for shows where factors say nothing about the label: *factors
shuffled* are new digits with the factors of other rows.
""",
    size=(12.0, 10.5),
)
