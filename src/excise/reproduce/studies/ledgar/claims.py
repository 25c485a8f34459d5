"""What the figures of the ledgar experiment say about each claim of the paper."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Claim, Measured, judged
from excise.reproduce.parts.removals import Supported, supported_removals
from excise.reproduce.studies.ledgar.measure import CLASSES

TABLE = {"governing laws": ("> 100", "> 100", "18", "6"), "terminations": ("> 100", "> 100", "21", "7")}


def supported(measured: Measured, name: str, epsilon: float) -> Supported:
    """How many removals of a class the published method supports."""
    series = measured["classes"][name]["paper"][f"{epsilon:g}"]
    return supported_removals(series["removed"], series["overall"], drop=measured["drop"])


def ours_supported(measured: Measured, name: str) -> Supported:
    """How many removals of a class our step supports."""
    series = measured["classes"][name]["ours"]
    return supported_removals(series["removed"], series["overall"], drop=measured["drop"])


def judge(measured: Measured) -> list[Claim]:
    """The table, its trend, how the class falls, and whether that is what retraining does."""
    return [
        _judge_table(measured),
        _judge_trend(measured),
        _judge_fall(measured),
        _judge_meaning(measured),
        _judge_noise(measured),
    ]


def _judge_table(measured: Measured) -> Claim:
    found = {name: [supported(measured, name, epsilon) for epsilon in measured["epsilons"]] for name in CLASSES}
    agree = [_agrees(one, said) for name in CLASSES for one, said in zip(found[name], TABLE[name], strict=True)]
    words = "; ".join(f"{name}: {', '.join(one.label for one in found[name])}" for name in CLASSES)
    return Claim(
        "Table 2, supported removals at ε = 0.1, 0.01, 0.001, 0.0005: governing laws > 100, > 100, 18, 6; terminations "
        "> 100, > 100, 21, 7",
        f"{words} (until micro-F1 falls by more than {measured['drop']:g}); {sum(agree)} of {len(agree)} cells agree",
        judged(all(agree)),
        "A cell agrees within a factor of two, or, where the paper has > 100, if all removals made here are supported. "
        f"The noise is as large as the paper's (σ = {', '.join(f'{sigma:.2g}' for sigma in measured['sigma'])}), the "
        f"step is larger: it goes with 1 / n, and n is {measured['samples']:,} here.",
    )


def _agrees(found: Supported, said: str) -> bool:
    if said.startswith(">"):
        return not found.ended
    return found.ended and 0.5 <= found.removals / float(said) <= 2


def _judge_trend(measured: Measured) -> Claim:
    counts = {}
    for name in CLASSES:
        found = [supported(measured, name, epsilon) for epsilon in sorted(measured["epsilons"])]
        counts[name] = [one.removals + (0 if one.ended else 1) for one in found]  # "> 30" is more than 30
    rises = all(list(one) == sorted(one) and one[-1] > one[0] for one in counts.values())
    ends = "; ".join(
        f"{name}: from {supported(measured, name, min(measured['epsilons'])).label} at ε = "
        f"{min(measured['epsilons']):g} to {supported(measured, name, max(measured['epsilons'])).label} at "
        f"{max(measured['epsilons']):g}"
        for name in CLASSES
    )
    return Claim(
        "with increasing ε, i.e. lower privacy guarantees, more removals are supported",
        ends,
        judged(rises),
        "Confirmed if the count never falls as ε rises, and is larger at the largest than at the smallest. Where ε "
        "is small, the noise (σ ∝ 1 / ε) does the damage; where it is large, what is left is that of the step itself.",
    )


def _judge_fall(measured: Measured) -> Claim:
    largest = f"{max(measured['epsilons']):g}"
    words, falls = [], []
    for name in CLASSES:
        series = measured["classes"][name]["paper"][largest]
        of_all, of_class = (series[key][0] - series[key][-1] for key in ("overall", "of_class"))
        falls.append(of_class > measured["drop"] and of_class >= 2 * of_all)
        words.append(f"{name}: {of_class:.2f} after {series['removed'][-1]} removals, overall {of_all:.2f}")
    return Claim(
        "the F1 of the removed class falls off rapidly, the change in overall scores is more gradual",
        f"fall of F1 at ε = {largest}: {'; '.join(words)}",
        judged(all(falls)),
        f"Confirmed if in both classes the class falls by more than {measured['drop']:g} and at least twice as far as "
        "all labels together, where there is least noise.",
    )


def _judge_meaning(measured: Measured) -> Claim:
    largest = f"{max(measured['epsilons']):g}"
    words, near = [], []
    for name in CLASSES:
        found = measured["classes"][name]
        literal = found["paper"][largest]
        again = measured["retrained"][name]
        near.append(abs(literal["of_class"][-1] - again["of_class"]) <= measured["drop"])
        models = {
            "before": _row(literal, 0),
            "retrained": again,
            "paper": _row(literal, -1),
            "our step": _row(found["ours"], -1),
            "our drift": found["drift"],
        }
        listed = ", ".join(f"{key} {row['of_class']:.2f} / {row['loss']:.3f}" for key, row in models.items())
        words.append(f"{name} ({measured['removals'][name]} of {measured['of_class'][name]} removed): {listed}")
    return Claim(
        "provisions of a class are removed, and its F1 falls off (which is read as forgetting)",
        f"F1 of the class / mean loss of the removed: {'; '.join(words)}",
        judged(all(near)),
        f"Confirmed if the paper's removals at ε = {largest} end within {measured['drop']:g} of the F1 of a model "
        "that was fine-tuned anew without the removed provisions. That one still sees the others of the class, so a "
        "fall beyond its F1 is damage.",
    )


def _row(series: Measured, place: int) -> dict[str, float]:
    return {"of_class": series["of_class"][place], "loss": series["loss"][place]}


def _judge_noise(measured: Measured) -> Claim:
    once = {name: measured["classes"][name]["paper, noise of this size"] for name in CLASSES}
    words = "; ".join(
        f"{name}: micro-F1 {measured['classes'][name]['ours']['overall'][0]:.2f} before, {found['overall']:.2f} after "
        f"(noise on {found['slices']} slices of {found['layers']})"
        for name, found in once.items()
    )
    return Claim(
        "at ε = 0.1 more than 100 removals are supported with the noise that this ε asks for",
        f"with {measured['samples']:,} training samples the formula asks for σ = {measured['sigma_of_this_size']:.2g}; "
        f"one removal with it: {words}",
        "out of reach",
        "The formula's σ goes with 1 / n², so the table's ε can only be had with its training set; the rows above take "
        "the σ of that set, and so show what such noise does, at an ε that is not guaranteed here. (Nor there: the "
        "formula is for convex objectives.)",
    )
