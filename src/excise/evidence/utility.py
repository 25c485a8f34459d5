"""How good is a model at its task? Accuracy, micro-F1 or error by the kind of task, and retrieval for features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from excise._support.checks import choice, finite, require, whole
from excise.errors import InputError, UndefinedWarning, warn
from excise.task.predictions import Predictions

Floats = NDArray[np.float64]
Interval = tuple[float, float]
Metric = Literal["auto", "accuracy", "micro-f1", "rmse"]

LEVEL = 0.95  # of intervals, unless told otherwise
FEW = 20  # with fewer samples, labels of one sample may stand or fall together without its showing
MOST_SIMILARITIES = 4_000_000  # at once in memory


@dataclass(frozen=True)
class Utility:
    """How well a model does on some samples."""

    metric: str
    """What the value is: higher is better, except for rmse."""
    value: float
    interval: Interval
    """For the value, by the chance of which samples were taken."""
    loss: float
    """Mean loss."""
    count: int


@dataclass(frozen=True)
class Retrieval:
    """How well features find images of the same identity."""

    mean_average_precision: float
    rank1: float
    """Share of queries whose most similar gallery image is of the same identity."""
    queries: int
    """How many were scored ..."""
    skipped: int
    """... and how many have no match in the gallery, so that nothing can be said."""
    precisions: Floats = field(repr=False, compare=False)
    """Average precision of every query in turn; NaN where it was skipped."""

    def of(self, rows: slice, answers: Predictions) -> Utility:
        """The mean average precision of some of the queries as a utility, with the mean loss of their answers.

        Wilson's interval is used as if a query were either found or not, which scatters more than precisions do.
        """
        scored = self.precisions[rows]
        scored = scored[~np.isnan(scored)]
        loss = float(np.mean(answers.losses))
        if len(scored) == 0:
            warn("none of these queries has a match in the gallery, so mAP is not defined (NaN).", UndefinedWarning)
            return Utility("mAP", np.nan, (np.nan, np.nan), loss, 0)
        return Utility("mAP", float(scored.mean()), _wilson(scored.sum(), len(scored), LEVEL), loss, len(scored))


def utility(
    answers: Predictions, *, metric: Metric = "auto", seed: int = 0, resamples: int = 1000, level: float = LEVEL
) -> Utility:
    """Score a model's answers by the metric of its kind of task.

    - ``accuracy``: one class per sample. Outputs are logits of the classes, or one logit of class 1 against class 0.
      With Wilson's interval.
    - ``micro-f1``: several labels per sample, 0 or 1 each. Outputs are one logit for each; above 0 is a yes. It is
      2 TP / (2 TP + FP + FN) over all labels together, NaN with a warning where there is neither a yes nor a 1.
    - ``rmse``: numbers to predict; the root of the mean squared error.

    Intervals of the last two join a bootstrap over samples with one that is honest for few: Wilson's for the share
    TP / (TP + FP + FN), which micro-F1 is a function of (with fewer than 20 samples each counts as one trial), and that
    of a normal distribution's spread.

    Args:
        answers: Outputs, targets and losses, as ``predict`` gives them.
        metric: "auto" takes accuracy for whole-number classes or a single logit with targets 0 and 1, micro-f1 for
            tables of 0 and 1, else rmse.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        level: Of the interval.

    >>> logits = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    >>> said = Predictions(logits, np.array([0, 1, 1]), np.array([0.1, 0.3, 3.0]))
    >>> result = utility(said)
    >>> result.metric, round(result.value, 3), round(result.loss, 3), result.count
    ('accuracy', 0.667, 1.133, 3)
    """
    name = choice(metric, get_args(Metric), "metric")
    whole(seed, "seed", 0)
    whole(resamples, "resamples")
    require(isinstance(level, float) and 0 < level < 1, "level", level, "a number between 0 and 1, such as 0.95")
    outputs, targets = _checked(answers)
    if name == "auto":
        name = _metric_of(outputs, targets)

    def bootstrap(statistic: Callable[[Floats], Floats], sums: Floats) -> Interval:
        return _bootstrap(statistic, sums, np.random.default_rng(seed), resamples, level)

    if name == "accuracy":
        value, interval = _accuracy(outputs, targets, level)
    elif name == "micro-f1":
        value, interval = _micro_f1(outputs, targets, bootstrap, level)
    else:
        value, interval = _rmse(outputs, targets, bootstrap, level)
    return Utility(name, value, interval, float(np.mean(answers.losses)), len(answers))


def retrieval(
    queries: Any,
    query_ids: Any,
    gallery: Any = None,
    gallery_ids: Any = None,
    *,
    query_cameras: Any = None,
    gallery_cameras: Any = None,
) -> Retrieval:
    """Rank a gallery by cosine similarity to each query, and score where the images of the same identity come.

    This is the protocol of person re-identification (Market-1501). With cameras, gallery images of the query's
    identity *and* camera are ignored, as they are too easy. Without a gallery the queries are their own, and each
    leaves itself out. The average precision of a query is the mean, over its matches, of the share of matches among
    all images at least as similar; equally similar ones share a rank, so the order of the gallery does not matter.

    Args:
        queries: Features, one row per image.
        query_ids: Identities, one per query: numbers or text.
        gallery: Features of the images to search, or None to search the queries themselves.
        gallery_ids: Their identities.
        query_cameras: Which camera took each query.
        gallery_cameras: Which camera took each gallery image.

    >>> gallery = [[1.0, 0.1], [1.0, 0.2], [1.0, 0.3], [1.0, 0.4]]  # from the nearest to the farthest
    >>> result = retrieval([[1.0, 0.0]], [7], gallery, [7, 8, 8, 7])
    >>> result.mean_average_precision, result.rank1  # (1/1 + 2/4) / 2
    (0.75, 1.0)
    """
    probes = _images("queries", queries, query_ids, query_cameras)
    own = gallery is None
    if own and (gallery_ids is not None or gallery_cameras is not None):
        raise InputError("gallery must be passed with gallery_ids or gallery_cameras; or none, to search the queries.")
    images = probes if own else _images("gallery", gallery, gallery_ids, gallery_cameras)
    if (probes.cameras is None) != (images.cameras is None):
        raise InputError("query_cameras and gallery_cameras must be passed together, or neither.")
    widths = probes.directions.shape[1], images.directions.shape[1]
    if widths[0] != widths[1]:
        raise InputError(f"queries has {widths[0]} features and gallery {widths[1]}; compute both by the same model.")

    scores = np.full((len(probes.ids), 2), np.nan)
    size = max(1, MOST_SIMILARITIES // len(images.ids))
    for low in range(0, len(probes.ids), size):
        similarities = probes.directions[low : low + size] @ images.directions.T
        for row, similarity in enumerate(np.round(similarities, 12), start=low):  # so that equal images do tie
            match = images.ids == probes.ids[row]
            valid = np.ones(len(match), dtype=bool)
            if probes.cameras is not None:
                valid = ~(match & (images.cameras == probes.cameras[row]))
            if own:
                valid[row] = False
            if np.any(match & valid):
                scores[row] = _precision_and_rank1(similarity[valid], match[valid])
    scored = scores[~np.isnan(scores[:, 0])]
    if len(scored) == 0:
        warn("no query has a match in the gallery, so retrieval is not defined (NaN).", UndefinedWarning)
    precision, rank1 = scored.mean(axis=0) if len(scored) else (np.nan, np.nan)
    return Retrieval(float(precision), float(rank1), len(scored), len(scores) - len(scored), scores[:, 0])


def _precision_and_rank1(similarity: Floats, match: NDArray[np.bool_]) -> tuple[float, float]:
    order = np.argsort(-similarity)
    distance, found = -similarity[order], np.cumsum(match[order])
    ranks = np.searchsorted(distance, -similarity[match], side="right")  # images at least as similar as each match
    first = np.searchsorted(distance, distance[0], side="right")
    return float(np.mean(found[ranks - 1] / ranks)), float(found[first - 1] / first)


def _checked(answers: Predictions) -> tuple[Floats, NDArray[Any]]:
    """Outputs and targets; a single column counts as a plain list."""
    require(isinstance(answers, Predictions), "answers", type(answers).__name__, "a Predictions, as predict() gives")
    if len(answers) == 0:
        raise InputError("answers is empty (0 samples); pass at least one.")
    outputs, targets = (
        values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        for values in (answers.outputs, answers.targets)
    )
    if len(outputs) != len(answers) or len(targets) != len(answers):
        raise InputError(
            f"answers must have one row per sample, not {len(outputs)} outputs, {len(targets)} targets and "
            f"{len(answers)} losses."
        )
    bad = np.flatnonzero(np.isnan(outputs.reshape(len(outputs), -1)).any(axis=1))
    if len(bad):
        raise InputError(
            f"answers has outputs that are NaN for {len(bad)} of {len(outputs)} samples (first: {bad[0]}); the model's "
            "training has diverged."
        )
    return outputs, targets


def _metric_of(outputs: Floats, targets: NDArray[Any]) -> str:
    if outputs.ndim == 2 and targets.ndim == 1 and targets.dtype.kind in "iu":
        return "accuracy"
    if outputs.shape == targets.shape and _zero_one(targets):
        return "accuracy" if outputs.ndim == 1 else "micro-f1"
    return "rmse"


def _zero_one(targets: NDArray[Any]) -> bool:
    return bool(np.isin(targets, (0, 1)).all())


def _accuracy(outputs: Floats, targets: NDArray[Any], level: float) -> tuple[float, Interval]:
    if outputs.ndim == 2 and targets.ndim == 1 and targets.dtype.kind in "iu":
        right = outputs.argmax(axis=1) == targets
    elif outputs.ndim == 1 and targets.ndim == 1 and _zero_one(targets):
        right = (outputs > 0) == targets.astype(bool)
    else:
        raise _misfit("accuracy", outputs, targets, "logits of the classes and whole-number targets", "micro-f1")
    hits = int(right.sum())
    return hits / len(right), _wilson(hits, len(right), level)


def _micro_f1(
    outputs: Floats, targets: NDArray[Any], bootstrap: Callable[..., Interval], level: float
) -> tuple[float, Interval]:
    if outputs.shape != targets.shape or not _zero_one(targets):
        raise _misfit("micro-f1", outputs, targets, "targets of 0 and 1 in the shape of the outputs", "rmse")
    yes, true = (table.reshape(len(table), -1).astype(bool) for table in (outputs > 0, targets))
    sums = np.stack([(yes & true).sum(axis=1), (yes != true).sum(axis=1)], axis=1).astype(float)  # TP and FP + FN
    hits, wrong = sums.sum(axis=0)
    if hits + wrong == 0:
        warn("micro-f1 is not defined (NaN): there is no label that is 1 or was said to be.", UndefinedWarning)
        return np.nan, (np.nan, np.nan)

    def score(totals: Floats) -> Floats:
        hits, wrong = totals[..., 0], totals[..., 1]
        value: Floats = 2 * hits / np.maximum(2 * hits + wrong, 1)  # a resample without any label counts as 0
        return value

    trials = hits + wrong if len(sums) >= FEW else min(len(sums), hits + wrong)
    low, high = (2 * share / (1 + share) for share in _wilson(hits / (hits + wrong) * trials, trials, level))
    drawn = bootstrap(score, sums)
    return float(score(sums.sum(axis=0))), (min(low, drawn[0]), max(high, drawn[1]))


def _rmse(
    outputs: Floats, targets: NDArray[Any], bootstrap: Callable[..., Interval], level: float
) -> tuple[float, Interval]:
    if outputs.shape != targets.shape:
        raise _misfit("rmse", outputs, targets, "targets in the shape of the outputs", "accuracy")
    if not (np.isfinite(outputs).all() and np.isfinite(targets).all()):
        raise InputError("answers has outputs or targets that are NaN or infinite, so rmse has no value; drop those.")
    squares = ((outputs - targets) ** 2).reshape(len(outputs), -1).mean(axis=1, keepdims=True)
    value = float(np.sqrt(squares.mean()))
    # n · mse / σ² is χ² of n degrees of freedom for normal errors
    low, high = value * np.sqrt(len(squares) / chi2.ppf([(1 + level) / 2, (1 - level) / 2], len(squares)))
    drawn = bootstrap(lambda totals: np.sqrt(totals[..., 0] / len(squares)), squares)
    return value, (min(float(low), drawn[0]), max(float(high), drawn[1]))


def _bootstrap(
    statistic: Callable[[Floats], Floats], sums: Floats, rng: np.random.Generator, resamples: int, level: float
) -> Interval:
    """Percentile interval of a statistic of sums over samples."""
    totals = np.array([sums[rng.integers(0, len(sums), len(sums))].sum(axis=0) for _ in range(resamples)])
    low, high = np.quantile(statistic(totals), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _wilson(hits: float, trials: float, level: float) -> Interval:
    """Wilson's score interval of a share, also of fractional counts."""
    z, share = norm.ppf((1 + level) / 2), hits / trials
    middle = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * np.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def _misfit(metric: str, outputs: Floats, targets: NDArray[Any], words: str, other: str) -> InputError:
    return InputError(
        f"metric {metric!r} needs {words}, but the outputs are of shape {outputs.shape} and the targets "
        f'{targets.dtype} of shape {targets.shape}; try metric="auto" or "{other}".'
    )


@dataclass(frozen=True)
class _Images:
    directions: Floats
    """Features, scaled to length one."""
    ids: NDArray[Any]
    cameras: NDArray[Any] | None


def _images(name: Literal["queries", "gallery"], features: Any, ids: Any, cameras: Any) -> _Images:
    table = finite(features, name, 2)
    length = np.linalg.norm(table, axis=1, keepdims=True)
    if np.any(length == 0):
        raise InputError(f"{name} has only zeros in row {int(np.argmin(length))}, which has no direction; drop it.")

    def one_each(values: Any, kind: str) -> NDArray[Any]:
        array = np.asarray(values)
        if array.shape != (len(table),):
            argument = f"{'query' if name == 'queries' else 'gallery'}_{kind}"
            raise InputError(
                f"{argument} must have one entry per row of {name} ({len(table)}), but has shape {array.shape}."
            )
        return array

    return _Images(table / length, one_each(ids, "ids"), None if cameras is None else one_each(cameras, "cameras"))
