"""What the figures of the sensitivity experiment say about each claim of the paper."""

from __future__ import annotations

import numpy as np

from excise.reproduce.framework.experiment import Claim, Measured, Verdict, clearly_above, judged
from excise.reproduce.studies.sensitivity.maps import GRADIENT, RANDOM, XI

ALIKE = 0.1
RULE = (
    "Confirmed if deleting and inserting in the order of ξ both do more than a random order, by two standard errors, "
    f"and a second map has a rank correlation of {ALIKE:g} or more with it: else it shows the copies, not the image."
)


def judge(measured: Measured) -> list[Claim]:
    """ξ explains if both orders do more than a random one, by two standard errors, and a second map says the same."""
    claims = []
    for name, found in measured["sets"].items():
        for side, what in (
            ("1", "pixel"),
            (str(measured["patch"]), "feature (here a square of pixels)"),
        ):
            claims.append(
                Claim(
                    f"sensitivity analysis by ξ of each input {what} estimates its effect on the output, a form of "
                    f"explainability: {name}",
                    _figures(found[side], measured["copies"]),
                    verdict(found[side]),
                    f"{_comparison(found[side])} {RULE}",
                )
            )
    return claims


def verdict(found: Measured) -> Verdict:
    """Of one kind of map on one data set."""
    deletes = clearly_above(found["deleted"][RANDOM]["areas"], found["deleted"][XI]["areas"])
    inserts = clearly_above(found["inserted"][XI]["areas"], found["inserted"][RANDOM]["areas"])
    return judged(deletes and inserts and found["with itself"] >= ALIKE)


def _figures(found: Measured, copies: int) -> str:
    """The areas of each map, and what is known of ξ's."""
    areas = {
        way: ", ".join(f"{name} {np.mean(curve['areas']):.3f}" for name, curve in found[way].items())
        for way in ("deleted", "inserted")
    }
    return (
        f"mean probability of the true class while deleting (lower is better): {areas['deleted']}; while inserting "
        f"(higher is better): {areas['inserted']}; rank correlation of ξ with the gradient "
        f"{found['with gradient']:.2f}, with a second ξ map of {copies:,} other copies {found['with itself']:.2f}"
    )


def _comparison(found: Measured) -> str:
    """In words, whether ξ or the gradient is the better map."""
    xi, gradient = (found["deleted"][name]["areas"] for name in (XI, GRADIENT))
    if clearly_above(gradient, xi):
        return "In deletion, ξ is better than the gradient's map."
    if clearly_above(xi, gradient):
        return "In deletion, the gradient's map is better, at the price of one backward pass."
    return "In deletion, ξ and the gradient's map are not told apart."
