"""What can be certified after a removal: how near the weights are to retrained ones, and what noise hides of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from excise._support.checks import require
from excise.errors import InputError
from excise.privacy.arguments import number
from excise.privacy.gaussian import gaussian_epsilon

_BEFOREHAND = "if the size of the noise was chosen beforehand"
_CALIBRATED = "whose distance the size of the noise was found from, so that it tells something of that distance"
ABOUT_FEATURES = (
    " The parts of the model that are not trained here give these features; as far as is known they were trained "
    "on the forgotten samples, and nothing is guaranteed of what they keep of them. Retraining all of the model "
    'could end elsewhere. If they never saw the samples, say so by Task(features="fixed").'
)
LATER = frozenset({"margin", "last_layer_only"})
"""What certificates of earlier versions lack."""


@dataclass(frozen=True)
class Certificate:
    """What is known, after a removal, about how near the model is to a retrained one."""

    bound: float | None
    """‖w' - w*‖ is at most this, before noise; None where nothing is proven."""
    kind: Literal["convex", "heuristic"]
    """``"convex"`` if the bound is proven, ``"heuristic"`` if there is none."""
    reason: str
    """What is guaranteed and what is not, in words."""
    gradient_norm: float
    """‖∇F(w'; residual set)‖, before noise."""
    epsilon: float | None = None
    """The smallest ε that noise σ gives against the bound, at this δ; None without noise or without a bound."""
    delta: float | None = None
    sigma: float | None = None
    margin: float = 0.0
    """How much of the bound is there for rounding."""
    last_layer_only: bool = False
    """Whether the bound is of the last layer on features as they are, which may have been trained on the samples."""

    @classmethod
    def from_dict(cls, record: Any, whose: str) -> Certificate:
        """From a record (``dataclasses.asdict``), with every value checked; records are not signed."""
        known = {one.name for one in fields(cls)}
        if not isinstance(record, Mapping) or not known - LATER <= set(record) <= known:
            raise InputError(f"{whose} has a damaged certificate: it must be a mapping of {', '.join(sorted(known))}.")
        for name, value in record.items():
            if (wrong := _what_is_wrong(name, value, record["kind"])) is not None:
                raise InputError(f"{whose} has a damaged certificate: {name} must be {wrong}, not {value!r:.80}.")
        return cls(**record)


def _what_is_wrong(name: str, value: Any, kind: Any) -> str | None:
    """What a value of a certificate should be; None where it is that."""
    if name == "kind":
        return None if value in ("convex", "heuristic") else '"convex" or "heuristic"'
    if name == "reason":
        return None if isinstance(value, str) else "words"
    if name == "last_layer_only":
        return None if isinstance(value, bool) else "true or false"
    if name in ("bound", "epsilon") and kind == "heuristic":
        return None if value is None else "null, where nothing is proven"
    if value is None and name in ("epsilon", "delta", "sigma"):
        return None
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return None if plain and 0 <= value <= sys.float_info.max else "a finite number that is not negative"


def certify(
    gradient_norm: float,
    weight_decay: float,
    *,
    convex: bool,
    sigma: float | None = None,
    delta: float | None = None,
    rounding: float = 0.0,
    distance: float | None = None,
    features: bool = False,
    vouched: bool = False,
    why_not: str | None = None,
    void: str | None = None,
    calibrated: bool = False,
) -> Certificate:
    """Say how far the weights w' can be from those of exact retraining, however w' was found.

    With a convex loss, F(w) = mean loss + λ/2 ‖w‖² is λ-strongly convex, so that

        ‖w' - w*‖ ≤ ‖∇F(w'; residual set)‖ / λ.

    Where the curvature at w' is at hand, a nearer bound may be known.

    The ε, for a given σ and δ, is a-posteriori: true of this data set and request, whose distance was measured. One
    that holds for all of them, as in definition 1, follows from ``newton_distance`` and where that applies only.

    Args:
        gradient_norm: Norm of the gradient of F at w', before noise, over the whole residual set and all parameters.
        weight_decay: λ, on every parameter, biases too.
        convex: Whether the loss is convex in the parameters: so in linear and logistic regression, not in a network.
        sigma: Standard deviation of the noise added to w' before anyone sees it; chosen beforehand.
        delta: The δ at which to state ε.
        rounding: By how much the norm can be larger than computed.
        distance: A bound on ‖w' - w*‖ by the curvature at w', with its rounding; None where there is none.
        features: Whether the model has parts that are not trained now, and may have been on the forgotten samples.
        vouched: Whether convexity is the user's word.
        why_not: Why the loss is not convex, or not known to be.
        void: Why no ε follows from the noise, whatever its size.
        calibrated: Whether the size of the noise was found from this bound.

    >>> certify(0.02, 0.01, convex=True).bound
    2.0
    >>> certify(0.02, 0.01, convex=False).kind
    'heuristic'
    """
    norm, decay = number(gradient_norm, "gradient_norm"), number(weight_decay, "weight_decay")
    require(isinstance(convex, bool), "convex", convex, "True or False", "a network with hidden layers is not convex")
    if (sigma is None) != (delta is None):
        raise InputError(f"sigma and delta must be given together, not {sigma!r} and {delta!r}; pass both or neither.")
    noise = None if sigma is None else number(sigma, "sigma", positive=True)
    prob = None if delta is None else number(delta, "delta", positive=True, below=1)
    if not convex or decay == 0:
        return Certificate(None, "heuristic", _why_not(norm, convex, noise, why_not), norm, None, prob, noise)
    margin = number(rounding, "rounding") / decay
    bound = norm / decay + margin
    nearer = distance is not None and number(distance, "distance") < bound
    if distance is not None and nearer:
        bound, margin = distance, min(margin, distance)
    reason = _guaranteed(norm, decay, bound, margin, nearer=nearer, features=features, vouched=vouched)
    found = Certificate(bound, "convex", reason, norm, margin=margin, last_layer_only=features)
    if noise is None or prob is None:
        return replace(found, reason=f"{reason} There is no noise to hide it.")
    if void is not None:
        reason += f" Noise of standard deviation {noise:.4g} was added, but no ε is guaranteed by it: {void}."
        return replace(found, reason=reason, delta=prob, sigma=noise)
    epsilon = gaussian_epsilon(noise, bound, prob)
    reason += (
        f" Noise of standard deviation {noise:.4g} on every weight hides it to this degree: whatever is looked for in "
        f"the noisy weights alone is at most e^{epsilon:.4g} times as likely to be found as in retrained weights with "
        f"the same noise, plus a probability of {prob:.4g}, and the other way round. This is guaranteed after the "
        f"fact, for this data set and request, {_CALIBRATED if calibrated else _BEFOREHAND}. Not guaranteed: anything "
        "of other requests or data, or against someone who also sees other models of this data, or these numbers."
    )
    return replace(found, reason=reason, epsilon=epsilon, delta=prob, sigma=noise)


def _guaranteed(
    norm: float, decay: float, bound: float, margin: float, *, nearer: bool, features: bool, vouched: bool
) -> str:
    """The reason of a bound."""
    what, on = (
        ("weights", "") if not features else ("weights of the last layer", " of that layer, on the same features,")
    )
    proven = "as the task says; rounding is not counted" if vouched else f"{margin:.2g} of it is for rounding"
    proven = "rounding is counted" if nearer else proven
    curvature = ", the curvature there" if nearer else ""
    return (
        f"Guaranteed: the {what}, before any noise, are within a Euclidean distance of {bound:.4g} of what exact "
        f"retraining{on} without the forgotten samples would give ({proven}). It follows from the gradient over all "
        f"retained samples, of norm {norm:.4g}{curvature}, and the weight decay, {decay:.4g}, if the loss is convex "
        f"and weight decay acts on every parameter.{ABOUT_FEATURES if features else ''} Not guaranteed: that the "
        "difference that is left tells nothing about the samples."
    )


def _why_not(norm: float, convex: bool, noise: float | None, why_not: str | None) -> str:
    """The reason of a certificate that certifies nothing."""
    flat = "the weight decay is 0, and without it a small gradient can be found far from the minimum; train with some."
    cause = "as networks are not" if why_not is None else f"or not known to be ({why_not})"
    rough = f"the model is not convex, {cause}: retraining could end at many weights, unknown how far."
    hidden = "" if noise is None else f" Noise of standard deviation {noise:.4g} may hide something, but no ε follows."
    return (
        "Not guaranteed: nothing is proven about how near the model is to a retrained one, because "
        f"{flat if convex else rough}{hidden} The gradient over all retained samples has norm {norm:.4g}. Whether the "
        "samples are forgotten has to be measured, against retrained models or by attacks; this is no evidence of it."
    )
