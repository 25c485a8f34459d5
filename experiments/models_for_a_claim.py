"""How many retrained models does a claim need? A simulation of the audit's |z| and of what it concludes.

    python -m experiments.models_for_a_claim

Margins of n forgotten samples vary between trainings as those of small networks were measured to (the MLP on
scikit-learn's digits): by 32 directions that all samples share, so that the mean |z| of another retraining varies by
0.13 at n = 40, however many models it is held against. The original knows each forgotten sample better by ``shift``
standard deviations on average; the unlearned model has the original's noise, and a share of that shift left. Printed
is how the shares are told, and how often an audit that goes by |z| alone would pass the model. The same seeds give the
same table; about a minute on one core.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from excise.evidence.against_retraining import by_deviation, is_moved, is_overshot
from excise.evidence.deviation import Deviation, Deviations, deviation
from excise.evidence.thresholds import USUAL

Floats = NDArray[np.float64]

DIRECTIONS, COMMON = 32, 0.15  # in which trainings differ, and the part in which all samples move together
TRIALS = 400
MODELS = (1, 3, 5, 8, 10, 20)
SHARES = (0.0, 0.2, 0.35, 0.5, 1.0)
SETTINGS = ((12, 1.5), (40, 1.5), (40, 3.0), (200, 1.5))  # forgotten samples, and the original's shift
OTHERS = 300  # samples that were not to be forgotten


@dataclass(frozen=True)
class Told:
    """What audits found in all trials."""

    size: Floats
    """Share of |z| that is left, as it is estimated; NaN where it can't be."""
    sign: Floats
    """The same of z with its sign."""
    passed: Floats
    """Whether the model passes, of the trials in which anything can be measured."""


def loadings(samples: int, rng: np.random.Generator) -> Floats:
    """How a training's noise reaches each sample; some samples vary more than others."""
    reach = rng.standard_normal((samples, DIRECTIONS))
    reach[:, 0] = COMMON * np.sqrt(DIRECTIONS)
    reach /= np.linalg.norm(reach, axis=1, keepdims=True)
    scaled: Floats = reach * np.exp(0.3 * rng.standard_normal((samples, 1)))
    return scaled


def told(models: int, samples: int, shift: float, share: float) -> Told:
    """Audits of a model that has this share of the original's shift left."""
    rng = np.random.default_rng([models, samples, int(10 * shift), int(100 * share)])
    sizes, signs, passed = [], [], []
    for _ in range(TRIALS):
        reach = loadings(samples, rng)
        centre = 3 * rng.standard_normal(samples)
        retrained = centre + rng.standard_normal((models, DIRECTIONS)) @ reach.T
        noise = reach @ rng.standard_normal(DIRECTIONS)
        known = shift * np.linalg.norm(reach, axis=1) * (1 + 0.5 * rng.standard_normal(samples))
        given = centre + noise + known, centre + noise + share * known, retrained
        size, signed = deviation(*given), deviation(*given, signed=True)
        others = Deviation(1.0, 1.0, (1.0,) * models, OTHERS)
        outcome, _ = by_deviation(Deviations(size, others, others, signed), models, USUAL)
        sizes.append(size.gap.share)
        signs.append(signed.gap.share)
        passed.append(np.nan if outcome == "undecided" else float(outcome == "forgotten"))
    return Told(np.array(sizes), np.array(signs), np.array(passed))


def false_alarms(models: int) -> tuple[float, float]:
    """How often another retraining, nothing else, is called moved, and overshot."""
    rng = np.random.default_rng(models)
    found = []
    for _ in range(TRIALS):
        forget, others = loadings(40, rng), loadings(OTHERS, rng)
        noise = rng.standard_normal((models + 2, DIRECTIONS))
        original, fresh, *retrained = noise @ forget.T
        signed = deviation(original, fresh, np.array(retrained), signed=True)
        original, fresh, *retrained = noise @ others.T
        found.append((is_moved(deviation(original, fresh, np.array(retrained))), is_overshot(signed)))
    moved, overshot = np.mean(found, axis=0)
    return float(moved), float(overshot)


def seen(models: int, distance: float) -> float:
    """How often other samples that all moved by so many standard deviations are seen to have moved."""
    rng = np.random.default_rng([models, int(10 * distance)])
    found = []
    for _ in range(TRIALS):
        reach = loadings(OTHERS, rng)
        original, *retrained = rng.standard_normal((models + 1, DIRECTIONS)) @ reach.T
        moved = original - distance * np.linalg.norm(reach, axis=1)
        found.append(is_moved(deviation(original, moved, np.array(retrained))))
    return float(np.mean(found))


def interval(values: Floats) -> str:
    low, middle, high = np.nanquantile(values, [0.05, 0.5, 0.95])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    for samples, shift in SETTINGS:
        print(f"\n{samples} forgotten samples, which the original knows better by {shift:g} standard deviations:\n")
        row("retrained models", "share left", "told by abs(z), 5 to 95 %", "told by z", "measurable", "passes")
        row(*["---"] * 6)
        for models in MODELS:
            if models < 3:
                row(models, "any", "no spread, so none", "none", "0 %", "–")
                continue
            for share in SHARES:
                found = told(models, samples, shift, share)
                measured = ~np.isnan(found.passed)
                passes = f"{np.mean(found.passed[measured]):.0%}" if measured.any() else "–"
                row(models, f"{share:g}", interval(found.size), interval(found.sign), f"{measured.mean():.0%}", passes)
    print("\nAnother retraining called moved, called overshot; 300 other samples seen to have moved by 1, 1.5, 2:\n")
    row("retrained models", "false moved", "false overshot", "by 1", "by 1.5", "by 2")
    row(*["---"] * 6)
    for models in MODELS[1:]:
        moved, overshot = false_alarms(models)
        row(models, f"{moved:.0%}", f"{overshot:.0%}", *(f"{seen(models, far):.0%}" for far in (1.0, 1.5, 2.0)))


if __name__ == "__main__":
    main()
