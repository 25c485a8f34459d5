"""What the figures of the reid experiment say about each claim of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from excise.reproduce.framework.experiment import Claim, Measured, Verdict, judged
from excise.reproduce.parts.removals import Supported, supported_removals
from excise.reproduce.studies.reid.measure import AT_ONCE, OURS, RETRAINED, literal

FEW_REMOVALS = 10  # fewer than these, the paper says, are supported with the smallest ε
MEANINGLESS, STILL_SURE = 0.1, 0.9  # of the confidence before: at most, and at least
SIGNIFICANT = 2.0  # times the change of others' maps
THREE_MINUTES, PAPER_COPIES = 180.0, 1000
Runs = Sequence[Measured]


def judge(measured: Measured) -> list[Claim]:
    """By the rules that the notes state."""
    return [
        _all_supported(measured),
        _few_supported(measured),
        _fewer_with_less(measured),
        _meaningless(measured),
        _still_confident(measured),
        _maps(measured),
        _smaller_sets(measured),
        _time(measured),
        _other_models(measured),
    ]


def _all_supported(measured: Measured) -> Claim:
    epsilon = max(measured["epsilons"])
    found = _supported(measured, literal(epsilon))
    ours = _supported(measured, OURS)
    return Claim(
        f"ε = {epsilon:g}: all samples of a person can be removed without a noticeable degradation in mAP",
        f"supported removals until the mAP of everyone else falls by more than {measured['drop']:g}, "
        f"{_listed(found)}; by our step: {_listed(ours)}. {_mean_maps(measured, literal(epsilon))}",
        judged(not any(one.ended for one in _of_all(found))),
        _noise_of(measured, epsilon),
    )


def _few_supported(measured: Measured) -> Claim:
    epsilon = min(measured["epsilons"])
    found = _supported(measured, literal(epsilon))
    every = _of_all(found)
    verdict: Verdict = (
        "confirmed" if all(one.ended and one.removals < FEW_REMOVALS for one in every) else "out of reach"
    )
    if any(one.removals >= FEW_REMOVALS for one in every):
        verdict = "not confirmed"
    return Claim(
        f"ε = {epsilon:g}: fewer than {FEW_REMOVALS} removals are supported, depending on the person",
        f"{_listed(found)}. {_mean_maps(measured, literal(epsilon))}",
        verdict,
        _noise_of(measured, epsilon)
        + (f" A person has fewer than {FEW_REMOVALS} images here." if verdict == "out of reach" else ""),
    )


def _fewer_with_less(measured: Measured) -> Claim:
    low, high = min(measured["epsilons"]), max(measured["epsilons"])
    few, many = (float(np.mean([s.removals for s in _of_all(_supported(measured, literal(e)))])) for e in (low, high))
    return Claim(
        f"appendix: with ε = {low:g} fewer samples can be unlearned than with ε = {high:g}",
        f"{few:.1f} against {many:.1f} on average over networks and people",
        judged(few < many),
    )


def _supported(measured: Measured, way: str) -> dict[str, list[Supported]]:
    """For each network, of every person."""
    return {
        name: [supported_removals(one["removed"], one["rest mAP"], drop=measured["drop"]) for one in found["ways"][way]]
        for name, found in measured["networks"].items()
    }


def _of_all(found: dict[str, list[Supported]]) -> list[Supported]:
    return [one for several in found.values() for one in several]


def _listed(found: dict[str, list[Supported]]) -> str:
    def said(one: Supported) -> str:
        return str(one.removals) if one.ended else f"all {one.removals}"

    return "; ".join(f"{name}: {', '.join(map(said, several))}" for name, several in found.items())


def _mean_maps(measured: Measured, way: str) -> str:
    pieces = [
        f"{name}: {_start(found, way, 'rest mAP'):.2f} → {_end(found, way, 'rest mAP'):.2f}"
        for name, found in measured["networks"].items()
    ]
    return f"Their mAP before and after all removals, {'; '.join(pieces)}"


def _noise_of(measured: Measured, epsilon: float) -> str:
    position = measured["epsilons"].index(epsilon)
    pieces = [f"{noise[position]:.2g} for {int(samples):,} images" for samples, noise in measured["noise"].items()]
    return (
        f"The noise's standard deviation is {' and '.join(pieces)}; the first is what was added, so that the removals "
        "meet the noise of the paper's set and not that of a small one."
    )


# ---------------------------------------------------------------------------------------------------- the person


def _meaningless(measured: Measured) -> Claim:
    way = literal(max(measured["epsilons"]))
    found = measured["networks"]
    left = [_end(one, way, "person confidence") / _start(one, way, "person confidence") for one in found.values()]
    heads = "; ".join(f"{name}: {_sure(one, 'person', way)}" for name, one in found.items())
    sought = "; ".join(f"{name}: {_sought(one, way)}" for name, one in found.items())
    return Claim(
        "after scrubbing, predictions for the person become meaningless (Figure re-ID)",
        f"confidence of the head in who the person is, {heads}. mAP of the person's own queries, {sought}",
        judged(max(left) <= MEANINGLESS),
        "Retraining is the yardstick. It takes away the name of the person, and may leave them easy to find: "
        "re-identification is there for people whom a network was never trained on. Retrieval that falls below the "
        "retrained network's is damage, not forgetting.",
    )


def _still_confident(measured: Measured) -> Claim:
    way = literal(max(measured["epsilons"]))
    found = measured["networks"]
    left = [_end(one, way, "rest confidence") / _start(one, way, "rest confidence") for one in found.values()]
    heads = "; ".join(f"{name}: {_sure(one, 'rest', way)}" for name, one in found.items())
    return Claim(
        "predictions on other classes are still possible with confidence",
        f"confidence of the head in who other trained people are, {heads}",
        judged(min(left) >= STILL_SURE),
    )


def _sure(found: Measured, who: str, way: str) -> str:
    ends = ", ".join(f"{_end(found, one, f'{who} confidence'):.2f} {one}" for one in (way, OURS, AT_ONCE, RETRAINED))
    return f"{_start(found, way, f'{who} confidence'):.2f} before; {ends}"


def _sought(found: Measured, way: str) -> str:
    ends = ", ".join(f"{_end(found, one, 'person mAP'):.2f} {one}" for one in (way, OURS, AT_ONCE, RETRAINED))
    unseen = _start(found, way, "unseen mAP")
    return f"{_start(found, way, 'person mAP'):.2f} before; {ends} (people never trained on: {unseen:.2f})"


def _maps(measured: Measured) -> Claim:
    way = literal(max(measured["epsilons"]))
    found = measured["networks"]
    changes = {name: _changes(one, way) for name, one in found.items()}
    told = "; ".join(
        f"{name}: {', '.join(_told(one, each) for each in (way, OURS, AT_ONCE, RETRAINED))}"
        for name, one in found.items()
    )
    clear = all(person >= SIGNIFICANT * rest and person > 0 for person, rest in changes.values())
    return Claim(
        "activations change significantly for the scrubbed person and remain stable for others",
        f"1 - cosine of the maps before and after, of the person and of others, {told}",
        judged(clear),
        "Retraining is the yardstick: it changes the maps of the person "
        + " and ".join(f"{_ratio(one, RETRAINED):.1f} ({name})" for name, one in found.items())
        + " times as much as those of others.",
    )


def _told(found: Measured, way: str) -> str:
    person, rest = _changes(found, way)
    return f"{person:.3f} and {rest:.3f} {way}"


def _ratio(found: Measured, way: str) -> float:
    person, rest = _changes(found, way)
    return person / max(rest, 1e-4)


def _changes(found: Measured, way: str) -> tuple[float, float]:
    return _end(found, way, "person map change"), _end(found, way, "rest map change")


# ---------------------------------------------------------------------------------------------------- the rest


def _smaller_sets(measured: Measured) -> Claim:
    way = literal(measured["epsilons"][0])
    few = measured["few"]
    small, large = few["ways"], measured["networks"][few["network"]]["ways"][way]
    count = min(one["removed"][-1] for one in small)
    layers = [float(np.mean([one["layers"] for one in runs])) for runs in (small, large)]
    slices = [float(np.mean([one["slices"] for one in runs])) for runs in (small, large)]
    changes = [float(np.mean([one["person map change"][count] for one in runs])) for runs in (small, large)]
    drops = [float(np.mean([one["rest mAP"][0] - one["rest mAP"][count] for one in runs])) for runs in (small, large)]
    more = layers[0] > layers[1] and changes[0] > changes[1]
    return Claim(
        "appendix: with about 2 samples per class, unlearning changes more and selects many more layers",
        f"{few['network']}, after {count} removals, with {few['images']} training images against "
        f"{measured['images']}: {layers[0]:.1f} against {layers[1]:.1f} layers ({slices[0]:.1f} against "
        f"{slices[1]:.1f} slices) a removal, the person's maps changed by {changes[0]:.3f} against {changes[1]:.3f}, "
        f"the mAP of everyone else fell by {drops[0]:.2f} against {drops[1]:.2f}",
        judged(more),
        "PRID and GRID are not here; the same people with fewer images each stand in for them.",
    )


def _time(measured: Measured) -> Claim:
    time = measured["time"]
    scaled = time["seconds"] * max(1.0, PAPER_COPIES / time["copies"])
    return Claim(
        "one unlearning step on a ResNet50 of about 24 M parameters takes about 3 minutes",
        f"{time['seconds']:.0f} s with {time['copies']:,} perturbed copies of one image on {time['threads']} CPU "
        f"thread{'s'[: time['threads'] != 1]} ({time['parameters'] / 1e6:.1f} M parameters), which is "
        f"{scaled:.0f} s for {PAPER_COPIES:,} copies at the most",
        judged(scaled <= 2 * THREE_MINUTES),
        "The paper's is on a GPU. Nearly all of it is passing the copies through the network.",
    )


def _other_models(measured: Measured) -> Claim:
    began = "; ".join(
        f"{name} ({one['parameters'] / 1e6:.1f} M parameters) from {one['begins with']} weights, mAP "
        f"{_start(one, OURS, 'rest mAP'):.2f}"
        for name, one in measured["networks"].items()
    )
    return Claim(
        "results over ResNet50, ResNet50_fc512, MLFN and MobileNet_V2 on four data sets are conclusive",
        f"{began}; raw pixels have mAP {measured['pixels mAP']:.2f}",
        "out of reach",
        "None of the data sets and no ImageNet weights are here. `--paper-scale` runs ResNet-50 and MobileNetV2 on "
        "Market-1501 where the data folder has it; ResNet50_fc512 and MLFN are left out.",
    )


def _start(found: Measured, way: str, score: str) -> float:
    return float(np.mean([one[score][0] for one in found["ways"][way]]))


def _end(found: Measured, way: str, score: str) -> float:
    return float(np.mean([one[score][-1] for one in found["ways"][way]]))
