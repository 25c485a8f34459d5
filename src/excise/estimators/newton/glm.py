"""``PoissonRegressor``, ``GammaRegressor``, ``TweedieRegressor``: a mean deviance and a penalty."""

from __future__ import annotations

from typing import Any

from sklearn.linear_model import GammaRegressor, PoissonRegressor, TweedieRegressor

from excise.errors import InputError, NotYetSupportedError
from excise.estimators.kept import Data, Kept, Options, way_for
from excise.estimators.newton.keeping import keep_minimum
from excise.estimators.newton.kinds import Penalty, Regression
from excise.estimators.newton.losses import Loss, SquaredError, Tweedie
from excise.estimators.newton.reading import read_design, read_numbers, read_weights
from excise.estimators.newton.stopping import Stopping


@way_for(PoissonRegressor, GammaRegressor, TweedieRegressor)
def keep_glm(estimator: Any, data: Data, options: Options) -> Kept:
    """Half the mean deviance by weight + ½ alpha ‖coef‖²; the intercept is not penalised."""
    loss = _loss(estimator)
    design = read_design(estimator, data, options)
    targets = read_numbers(data)
    lowest = targets.min()
    if (lowest < 0 and isinstance(loss, Tweedie)) or (lowest == 0 and loss == Tweedie(2.0)):
        raise InputError(
            f"y has the value {lowest:g}, which {type(estimator).__name__} is never fitted on; pass the same y."
        )
    kind = Regression(
        design=design,
        targets=targets,
        weights=read_weights(data),
        loss=loss,
        penalty=Penalty(estimator.alpha, per="weight"),
    )
    return keep_minimum(estimator, data, kind, options, Stopping.of(estimator, "mean"))


def _loss(estimator: Any) -> Loss:
    """The deviance as a function of the linear predictor, where that is convex."""
    if isinstance(estimator, PoissonRegressor):
        return Tweedie(1.0)
    if isinstance(estimator, GammaRegressor):
        return Tweedie(2.0)
    link = estimator.link
    if link == "auto":
        link = "identity" if estimator.power <= 0 else "log"
    if link == "log" and 1 <= estimator.power <= 2:
        return Tweedie(float(estimator.power))
    if link == "identity" and estimator.power == 0:
        return SquaredError()
    raise NotYetSupportedError(
        f"estimator: TweedieRegressor with power={estimator.power!r} and link={estimator.link!r} has an objective that "
        "is not convex (or not defined) everywhere, so nothing tells how far its minimum is. It is convex with a power "
        "from 1 to 2 and the log link, or 0 and the identity; fit others anew."
    )
