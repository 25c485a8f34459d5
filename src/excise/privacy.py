"""How much noise hides what is left of a sample, what can be certified, and how many requests fit until retraining.

After a removal the weights are w', exact retraining would give w*, and noise N(0, σ²) is added to every weight. The two
are (ε, δ)-indistinguishable when for every set W of weights, and with w' and w* exchanged too,

    P(w' + noise ∈ W) ≤ e^ε P(w* + noise ∈ W) + δ.

This is the paper's definition 1 for a training that adds the same noise; against exact retraining, which always gives
w* itself, it can't hold.
"""

from __future__ import annotations

import math
import numbers
import sys
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, ndtri

from excise.errors import ExciseError, InputError

if TYPE_CHECKING:
    import torch

_MEANING = {
    "delta": "it is a probability, usually far below 1 / (number of samples)",
    "distance": "it is the Euclidean distance of the two models' weights",
    "epsilon": "1 is usual, and smaller hides more",
    "gradient_norm": "if it is NaN or infinite, so is the model's loss",
    "hessian_lipschitz": "it is M, and 0 for a quadratic loss",
    "lipschitz": "it is L, a bound on the norm of every sample's gradient",
    "removed": "it is how many samples are removed",
    "samples": "it is the size of the training set",
    "sigma": "it is the standard deviation of the noise",
    "strong_convexity": "it is λ, the weight decay for a convex loss",
    "weight_decay": "it is λ of the training",
}
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_FAR = 40.0  # as t = ε/a - a/2 below: beyond, δ is 0 or 1 as far as floats can tell
_ROUNDING = 1 + 1e-9  # so that three times 0.1 fit into 0.3


class RetrainRequired(ExciseError):
    """A request does not fit into what is left of the budget; nothing was spent."""


def newton_distance(
    *, removed: int, samples: int, lipschitz: float, hessian_lipschitz: float, strong_convexity: float
) -> float:
    """How far one Newton removal step can end from the retrained weights, known before any data is seen.

    The bound of Sekhari, Acharya, Kamath and Suresh (2021), with m of n samples removed:

        ‖w' - w*‖ ≤ 2 M m² L² / (λ³ n²).

    For the optimum moves by r ≤ 2 m L / (λ n), and a Newton step over that distance misses by at most M r² / (2 λ).
    It needs the exact optimum and a full step with the residual set's exact Hessian; ``certify`` holds for any step.

    Args:
        removed: m, how many samples are removed in this step.
        samples: n, how many samples the model was trained on.
        lipschitz: L, the largest norm of one sample's gradient, its weight decay λw included, wherever an optimum can
            be. Twice the Lipschitz constant of the loss alone is enough.
        hessian_lipschitz: M, the Lipschitz constant of one sample's Hessian.
        strong_convexity: λ, for a convex loss the weight decay.

    >>> newton_distance(removed=1, samples=100, lipschitz=1, hessian_lipschitz=1, strong_convexity=1)
    0.0002
    >>> newton_distance(removed=50, samples=100, lipschitz=1, hessian_lipschitz=0, strong_convexity=1)  # a quadratic
    0.0
    """
    m, n = _count(removed, "removed"), _count(samples, "samples")
    if m >= n:
        raise InputError(f"removed must be less than samples ({n}), not {m}; at least one sample has to remain.")
    convexity = _number(strong_convexity, "strong_convexity", positive=True)
    moved = 2 * m * _number(lipschitz, "lipschitz") / (convexity * n)
    return _number(hessian_lipschitz, "hessian_lipschitz") * moved * moved / (2 * convexity)


def classic_sigma(distance: float, epsilon: float, delta: float) -> float:
    """The noise of the paper, by the classical Gaussian mechanism: σ = distance · √(2 ln(1.25/δ)) / ε.

    A guarantee for ε ≤ 1 only; a larger ε is refused. ``analytic_sigma`` needs less noise for the same promise.

    >>> round(classic_sigma(1, 1, 1e-5), 3)  # √(2 ln 125000)
    4.845
    """
    size, eps = _number(distance, "distance"), _number(epsilon, "epsilon", positive=True)
    if eps > 1:
        raise InputError(f"epsilon must be at most 1 for this formula to hold, not {epsilon!r}; use analytic_sigma.")
    return size * math.sqrt(2 * math.log(1.25 / _number(delta, "delta", positive=True, below=1))) / eps


def analytic_sigma(distance: float, epsilon: float, delta: float) -> float:
    """The least noise that makes two models at this distance (ε, δ)-indistinguishable, for any ε > 0.

    It is the σ whose ``gaussian_delta`` is δ (Balle and Wang 2018, algorithm 1).

    >>> round(analytic_sigma(1, 1, 1e-5), 3)  # where the classical formula asks for 4.845
    3.731
    """
    size, eps = _number(distance, "distance"), _number(epsilon, "epsilon", positive=True)
    prob = _number(delta, "delta", positive=True, below=1)
    root = math.sqrt(2) * math.sqrt(eps)

    def ratio(t: float) -> float:
        # the a > 0 with t = ε/a - a/2, that is √(t² + 2ε) - t, without cancellation
        reach = math.hypot(t, root)
        return reach - t if t < 0 else root * (root / (reach + t))

    t = _root(lambda t: _log_delta(t, ratio(t)) - math.log(prob), -_FAR, _latest(prob), scale=root)
    return size / ratio(t)


def gaussian_delta(sigma: float, distance: float, epsilon: float) -> float:
    """The smallest δ for which noise σ makes two models at this distance (ε, δ)-indistinguishable.

    With a = distance/σ it is δ = Φ(a/2 - ε/a) - e^ε Φ(-a/2 - ε/a) (Balle and Wang 2018, theorem 8).

    >>> round(gaussian_delta(1, 2, 0), 4)  # between N(-1, 1) and N(1, 1) it is P(|N(0, 1)| ≤ 1)
    0.6827
    """
    a = _number(distance, "distance") / _number(sigma, "sigma", positive=True)
    t = _number(epsilon, "epsilon") / a - a / 2 if a > 0 else math.inf
    if abs(t) > _FAR:
        return 0.0 if t > 0 else 1.0
    return min(math.exp(_log_delta(t, a)), 1.0)


def gaussian_epsilon(sigma: float, distance: float, delta: float) -> float:
    """The smallest ε ≥ 0 for which noise σ makes two models at this distance (ε, δ)-indistinguishable.

    >>> round(gaussian_epsilon(analytic_sigma(3, 0.5, 1e-6), 3, 1e-6), 9)
    0.5
    """
    a = _number(distance, "distance") / _number(sigma, "sigma", positive=True)
    prob = _number(delta, "delta", positive=True, below=1)
    if a == math.inf:
        return math.inf
    if a == 0 or _log_delta(-a / 2, a) <= math.log(prob):  # ε = 0 is enough
        return 0.0
    t = _root(lambda t: _log_delta(t, a) - math.log(prob), -a / 2, _latest(prob), scale=a)
    return a * (t + a / 2)


def add_noise(vector: torch.Tensor, sigma: float, generator: torch.Generator) -> torch.Tensor:
    """A copy of the vector with noise N(0, σ²) on every entry.

    It is drawn on the CPU in float64, so that a seed gives the same noise on every device and in every precision. Keep
    the seed secret: who knows it can take the noise away. The theory is of real numbers and leaves out rounding.

    >>> import torch
    >>> add_noise(torch.ones(3), 0.0, torch.Generator())
    tensor([1., 1., 1.])
    """
    import torch

    scale = _number(sigma, "sigma")
    if not isinstance(vector, torch.Tensor) or not vector.is_floating_point():
        got = vector.dtype if isinstance(vector, torch.Tensor) else type(vector).__name__
        raise InputError(f"vector must be a tensor of floats, not {got}; pass the weights themselves.")
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        raise InputError(f"generator must be a torch.Generator on the CPU, not {generator!r}; pass torch.Generator().")
    noise = torch.randn(vector.shape, generator=generator, dtype=torch.float64)
    return vector + noise.mul_(scale).to(device=vector.device, dtype=vector.dtype)


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


def certify(
    gradient_norm: float, weight_decay: float, *, convex: bool, sigma: float | None = None, delta: float | None = None
) -> Certificate:
    """Say how far the weights w' can be from those of exact retraining, however w' was found.

    With a convex loss, F(w) = mean loss + λ/2 ‖w‖² is λ-strongly convex, so that

        ‖w' - w*‖ ≤ ‖∇F(w'; residual set)‖ / λ.

    The ε, for a given σ and δ, is a-posteriori: true of this data set and request, whose distance was measured. One
    that holds for all of them, as in definition 1, follows from ``newton_distance`` and where that applies only.

    Args:
        gradient_norm: Norm of the gradient of F at w', before noise, over the whole residual set and all parameters.
        weight_decay: λ, on every parameter, biases too.
        convex: Whether the loss is convex in the parameters: so in linear and logistic regression, not in a network.
        sigma: Standard deviation of the noise added to w' before anyone sees it; chosen beforehand.
        delta: The δ at which to state ε.

    >>> certify(0.02, 0.01, convex=True).bound
    2.0
    >>> certify(0.02, 0.01, convex=False).kind
    'heuristic'
    """
    norm, decay = _number(gradient_norm, "gradient_norm"), _number(weight_decay, "weight_decay")
    if not isinstance(convex, bool):
        raise InputError(f"convex must be True or False, not {convex!r}; a network with hidden layers is not convex.")
    if (sigma is None) != (delta is None):
        raise InputError(f"sigma and delta must be given together, not {sigma!r} and {delta!r}; pass both or neither.")
    noise = None if sigma is None else _number(sigma, "sigma", positive=True)
    prob = None if delta is None else _number(delta, "delta", positive=True, below=1)
    if not convex or decay == 0:
        return Certificate(None, "heuristic", _why_not(norm, convex, noise), norm, None, prob, noise)
    bound = norm / decay
    reason = (
        f"Guaranteed: the weights, before any noise, are within a Euclidean distance of {bound:.4g} of what exact "
        "retraining without the forgotten samples would give. It follows from the gradient over all retained samples, "
        f"of norm {norm:.4g}, and the weight decay, {decay:.4g}, if the loss is convex and weight decay acts on every "
        "parameter. Not guaranteed: that the difference that is left tells nothing about the samples."
    )
    if noise is None or prob is None:
        return Certificate(bound, "convex", f"{reason} There is no noise to hide it.", norm)
    epsilon = gaussian_epsilon(noise, bound, prob)
    reason += (
        f" Noise of standard deviation {noise:.4g} on every weight hides it to this degree: whatever is looked for in "
        f"the noisy weights alone is at most e^{epsilon:.4g} times as likely to be found as in retrained weights with "
        f"the same noise, plus a probability of {prob:.4g}, and the other way round. This is guaranteed after the "
        "fact, for this data set and request, if the size of the noise was chosen beforehand. Not guaranteed: anything "
        "of other requests or data, or against someone who also sees other models of this data, or these numbers."
    )
    return Certificate(bound, "convex", reason, norm, epsilon, prob, noise)


@dataclass(frozen=True)
class Request:
    """What one deletion request spent."""

    epsilon: float
    delta: float
    removed: int = 1


class Budget(NamedTuple):
    """An amount of ε and δ."""

    epsilon: float
    delta: float


class BudgetAccountant:
    """Keeps what all deletion requests since the last training spend together within a budget of ε and δ.

    If request i is (ε_i, δ_i)-indistinguishable from retraining, by noise of its own, then all models published since
    are so together from as many retrained ones, with the smaller ε of

        basic:     Σ ε_i                            at δ = Σ δ_i,
        advanced:  Σ ε_i²/2 + √(2 ln(1/δ') Σ ε_i²)  at δ = Σ δ_i + δ',

    where δ' is all that the requests leave of the budget's δ. Both are proven for ε_i and δ_i set in advance, not for
    the ε of a ``Certificate``, which is found afterwards. With a total δ of 0 composition is basic.

    >>> budget = BudgetAccountant(1.0, 1e-5)
    >>> budget.spend(0.25, 1e-6)
    >>> budget.remaining.epsilon, budget.capacity(0.25, 1e-6)
    (0.75, 3)
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self.total = Budget(_number(epsilon, "epsilon", positive=True), _number(delta, "delta", below=1))
        self.history: list[Request] = []

    @property
    def spent(self) -> Budget:
        """The ε, and the δ at which it holds, of all requests so far together."""
        basic, squares, delta = self._sums()
        advanced = self._advanced(squares, delta)
        return Budget(advanced, self.total.delta) if advanced < basic else Budget(basic, delta)

    @property
    def remaining(self) -> Budget:
        """The largest ε that one more request of δ = 0 can have, and the δ that is not spent."""
        basic, squares, delta = self._sums()
        left, slack = self.total.epsilon - basic, self.total.delta - delta
        if slack > 0:
            # the largest x = √Σε_i² with x²/2 + c x ≤ ε
            c = math.sqrt(-2 * math.log(slack))
            x = 2 * self.total.epsilon / (c + math.sqrt(c * c + 2 * self.total.epsilon))
            left = max(left, math.sqrt(max(x * x - squares, 0.0)))
        return Budget(max(left, 0.0), max(slack, 0.0))

    def capacity(self, epsilon_per_request: float, delta_per_request: float) -> int:
        """How many more requests of this ε and δ fit (``sys.maxsize`` where the end is out of sight)."""
        each = _request(epsilon_per_request, delta_per_request)
        if each.epsilon == each.delta == 0:
            raise InputError("epsilon_per_request and delta_per_request must not both be 0; any number of those fits.")
        return bisect_left(range(sys.maxsize), True, key=lambda more: not self._fits(each, more + 1))

    def spend(self, epsilon: float, delta: float, *, removed: int = 1) -> None:
        """Record a request, for all its samples together; ``RetrainRequired`` if it does not fit."""
        request = _request(epsilon, delta, removed)
        if not self._fits(request):
            left = self.remaining
            raise RetrainRequired(
                f"A request of epsilon={request.epsilon:g}, delta={request.delta:g} does not fit: {len(self.history)} "
                f"requests have left epsilon={left.epsilon:.4g}, delta={left.delta:.4g} of {self.total.epsilon:g}, "
                f"{self.total.delta:g}. Retrain without the forgotten samples and call reset(), or add more noise."
            )
        self.history.append(request)

    def reset(self) -> None:
        """Begin anew, after the model was retrained without the forgotten samples."""
        self.history = []

    def state_dict(self) -> dict[str, Any]:
        """The budget and all requests, in plain values that JSON can hold."""
        return {**self.total._asdict(), "history": [asdict(request) for request in self.history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the requests of a saved accountant of the same budget; after an error nothing has changed."""
        _check_keys(state, ("epsilon", "delta", "history"), "state")
        saved = BudgetAccountant(state["epsilon"], state["delta"])
        if saved.total != self.total:
            got, own = tuple(saved.total), tuple(self.total)
            raise InputError(f"state must be of this accountant's budget, {own}, not {got}; make one for {got}.")
        if not isinstance(state["history"], list):
            raise InputError(f"state['history'] must be a list of requests, not {state['history']!r}.")
        for index, entry in enumerate(state["history"]):
            _check_keys(entry, ("epsilon", "delta", "removed"), f"state['history'][{index}]")
            request = _request(**entry)
            if not saved._fits(request):
                raise InputError(f"state['history'][{index}] must fit into the budget, not {request!r}; was it edited?")
            saved.history.append(request)
        self.history = saved.history

    def _sums(self) -> tuple[float, float, float]:
        """Σ ε_i, Σ ε_i² and Σ δ_i."""
        rows = [(request.epsilon, request.epsilon * request.epsilon, request.delta) for request in self.history]
        basic, squares, delta = map(math.fsum, zip(*rows, strict=True)) if rows else (0.0, 0.0, 0.0)
        return basic, squares, delta

    def _fits(self, request: Request, times: int = 1) -> bool:
        basic, squares, delta = self._sums()
        delta += times * request.delta
        if delta > self.total.delta * _ROUNDING:
            return False
        advanced = self._advanced(squares + times * request.epsilon * request.epsilon, delta)
        return min(basic + times * request.epsilon, advanced) <= self.total.epsilon * _ROUNDING

    def _advanced(self, squares: float, delta: float) -> float:
        slack = self.total.delta - delta
        return squares / 2 + math.sqrt(-2 * math.log(slack) * squares) if slack > 0 else math.inf


def _why_not(norm: float, convex: bool, noise: float | None) -> str:
    """The reason of a certificate that certifies nothing."""
    flat = "the weight decay is 0, and without it a small gradient can be found far from the minimum; train with some."
    rough = "the model is not convex, as networks are not: retraining could end at many weights, unknown how far."
    hidden = "" if noise is None else f" Noise of standard deviation {noise:.4g} may hide something, but no ε follows."
    return (
        "Not guaranteed: nothing is proven about how near the model is to a retrained one, because "
        f"{flat if convex else rough}{hidden} The gradient over all retained samples has norm {norm:.4g}. Whether the "
        "samples are forgotten has to be measured, against retrained models or by attacks; this is no evidence of it."
    )


def _log_delta(t: float, a: float) -> float:
    """Log of δ, where t = ε/a - a/2: δ = φ(t) (R(t) - R(t + a)) with Mills' ratio R(s) = Φ(-s)/φ(s)."""
    log_density = -t * t / 2 - math.log(2 * math.pi) / 2
    if a < 1:
        # the two would cancel, so integrate -R'(s) = 1 - s R(s), which is so smooth that few nodes give all digits
        s = t + a * (1 + _NODES) / 2
        return log_density + math.log(a) + math.log(_WEIGHTS @ (1 - s * _mills(s)) / 2)
    log_tail = float(log_ndtr(-t))
    return log_tail + math.log1p(-math.exp(log_density + math.log(_mills(t + a)) - log_tail))


def _latest(prob: float) -> float:
    """A t at which δ is surely less than this, as it is at most Φ(-t)."""
    return 1 - float(ndtri(prob))


def _mills(s: Any) -> Any:
    return math.sqrt(math.pi / 2) * erfcx(s / math.sqrt(2))


def _root(f: Any, low: float, high: float, *, scale: float) -> float:
    return float(brentq(f, low, high, xtol=1e-16 * scale, rtol=4 * sys.float_info.epsilon, maxiter=5000))


def _request(epsilon: Any, delta: Any, removed: Any = 1) -> Request:
    return Request(_number(epsilon, "epsilon"), _number(delta, "delta", below=1), _count(removed, "removed"))


def _number(value: Any, name: str, *, positive: bool = False, below: float = math.inf) -> float:
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not (0 < number < below or (number == 0 and not positive)):
        what = ("a positive" if positive else "a non-negative") + " number" + (" below 1" if below == 1 else "")
        raise InputError(f"{name} must be {what}, not {value!r}; {_MEANING[name]}.")
    return number


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise InputError(f"{name} must be a positive integer, not {value!r}; {_MEANING[name]}.")
    return int(value)


def _check_keys(entry: Any, keys: tuple[str, ...], name: str) -> None:
    if not isinstance(entry, Mapping) or set(entry) != set(keys):
        got = sorted(map(str, entry)) if isinstance(entry, Mapping) else type(entry).__name__
        raise InputError(f"{name} must be a mapping with keys {', '.join(keys)}, not {got}; was it saved by excise?")
