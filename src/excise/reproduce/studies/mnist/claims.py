"""What the figures of the MNIST experiment say about each claim of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from excise.reproduce.framework.experiment import Claim, Measured, judged
from excise.reproduce.parts.scores import RESIDUAL, VALIDATION
from excise.reproduce.studies.mnist.measure import FULL, LFOCI, NOISY, NORM, QUIET, RANDOM, STEPS

CLOSE = 0.005  # accuracies that differ by at most this count as equal
HELD = 0.01  # and a fall by at most this as none


def mean_so_far(removed: Sequence[int], curves: Any) -> NDArray[np.float64]:
    """Of means between two measurements, the mean over all removals up to each; without the first value, of none.

    Which samples are removed matters more than how: single values would only show that.

    >>> mean_so_far([0, 1, 4], [[9.0, 2.0, 6.0]]).tolist()
    [[2.0, 5.0]]
    """
    counts = np.diff(removed)
    return np.asarray(np.cumsum(np.asarray(curves)[:, 1:] * counts, axis=1) / np.cumsum(counts))


def judge(measured: Measured) -> list[Claim]:
    """Each claim by a rule that its row states."""
    claims = [_close_to_full(measured), _larger_norm(measured), _accuracy_holds(measured), _noise(measured)]
    return [*claims, _as_retrained(measured)] if measured["convex"] else claims


def _last(measured: Measured, steps: str, selection: str, name: str) -> float:
    """Mean over runs after the last removal."""
    return float(np.mean([curve[-1] for curve in measured["series"][steps][selection][name]]))


def _means(measured: Measured, steps: str, selection: str, name: str) -> NDArray[np.float64]:
    """Over the runs, at every measurement."""
    means: NDArray[np.float64] = np.asarray(measured["series"][steps][selection][name], dtype=float).mean(axis=0)
    return means


def _close_to_full(measured: Measured) -> Claim:
    def trio(steps: str, name: str) -> str:
        return " / ".join(f"{_last(measured, steps, selection, name):.1%}" for selection in (FULL, LFOCI, RANDOM))

    apart = max(
        float(np.abs(np.subtract(*(_means(measured, NOISY, selection, name) for selection in (FULL, LFOCI)))).max())
        for name in (RESIDUAL, VALIDATION)
    )
    found = "; ".join(f"{steps} {trio(steps, RESIDUAL)} and {trio(steps, VALIDATION)}" for steps in STEPS)
    return Claim(
        "with the slices that L-FOCI selects, accuracies are those of the full Hessian update",
        f"residual and validation accuracy after {measured['removed'][-1]} removals, full / L-FOCI / random: {found}",
        judged(apart <= CLOSE),
        f"Confirmed if the two are never more than {100 * CLOSE:g} points apart under the published step; at some "
        f"number of removals they are {100 * apart:.1f} apart, as they lose what they knew at different times.",
    )


def _larger_norm(measured: Measured) -> Claim:
    def norms(steps: str, selection: str) -> Any:
        return mean_so_far(measured["removed"], measured["series"][steps][selection][NORM])[:, -1]

    holds = all((norms(steps, LFOCI) > norms(steps, RANDOM)).all() for steps in (NOISY, QUIET))
    found = "; ".join(
        f"{steps} {norms(steps, LFOCI).mean():.3g} against {norms(steps, RANDOM).mean():.3g}" for steps in STEPS
    )
    before, retrained = np.mean(measured["norm before"]), np.mean(measured["norm retrained"])
    slices = np.mean(measured["series"][NOISY][LFOCI]["slices"])
    return Claim(
        '"the sample gradient norm for selections made by L-FOCI are larger than those of a random selection"',
        f"mean over the removals, L-FOCI ({slices:.1f} of {measured['slices']} slices) against random: {found}; "
        f"{before:.3g} before any step, {retrained:.3g} under the retrained model",
        judged(holds),
        "Confirmed if larger in every run under the published step, with and without its noise. Larger is not better "
        "by itself: a norm far above the retrained model's means that the step went too far.",
    )


def _accuracy_holds(measured: Measured) -> Claim:
    def fall(steps: str, name: str) -> float:
        curves = np.asarray(measured["series"][steps][LFOCI][name])
        return float((curves[:, 0] - curves[:, -1]).mean())

    found = "; ".join(
        f"{steps} {100 * fall(steps, RESIDUAL):.2f} and {100 * fall(steps, VALIDATION):.2f}" for steps in STEPS
    )
    worst = max(fall(NOISY, RESIDUAL), fall(NOISY, VALIDATION))
    return Claim(
        "accuracies hold up over 1,000 removals (ε = 0.1, δ = 0.01)",
        f"fall of residual and validation accuracy over {measured['removed'][-1]} removals, L-FOCI, points: {found}",
        judged(worst <= HELD),
        f"Confirmed if the published step with its noise loses at most {100 * HELD:g} point.",
    )


def _noise(measured: Measured) -> Claim:
    largest = measured["largest norm"]
    return Claim(
        "with this noise each removal is (0.1, 0.01)-forgetting",
        f"the noise (standard deviation {measured['sigma']:.2g}) takes it that no sample's gradient is longer than 1 "
        f"and that one sample is removed; here gradients are up to {largest:.3g} long, and "
        f"{measured['removed'][-1]} samples go",
        judged(largest <= 1),
        "Confirmed if no removed sample's gradient is longer than 1. The bound grows with the square of the gradient's "
        f"length and of the number of removals: at {largest:.2g} it asks for noise of "
        f"{measured['sigma'] * largest**2:.2g} at the first removal and "
        f"{measured['sigma'] * (largest * measured['removed'][-1]) ** 2:.1g} at the last, which leaves no model.",
    )


def _as_retrained(measured: Measured) -> Claim:
    def trio(steps: str) -> str:
        series = measured["series"][steps]
        return " / ".join(f"{np.mean(series[selection]['left']):.3g}" for selection in (FULL, LFOCI, RANDOM))

    found = "; ".join(f"{steps} {trio(steps)}" for steps in STEPS)
    nearer = max(measured["series"][QUIET][LFOCI]["left"]) < 1
    return Claim(
        "the updated model is what training without the samples would have given (Definition 1)",
        "distance to the exactly retrained weights, as a share of the distance before any step (1: nothing done), "
        f"full / L-FOCI / random: {found}",
        judged(nearer),
        "Confirmed if the published step with L-FOCI, even without its noise, comes nearer in every run. Its curvature "
        "has rank two, so that it goes the gradient's way divided by the weight decay: much too far.",
    )
