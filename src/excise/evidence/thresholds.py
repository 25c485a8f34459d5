"""Where a verdict draws its lines."""

from __future__ import annotations

from dataclasses import dataclass, fields

from excise._support.checks import number, require


@dataclass(frozen=True)
class Thresholds:
    """What a verdict takes for near, lost or few; each name ends in what the number is compared with.

    Accuracies are shares, so 0.01 is a point. Where answers are scored by an error (rmse), a loss of accuracy is a rise
    of the error as a share of it.

    >>> Thresholds(forgotten_share_left=0.6)
    Traceback (most recent call last):
        ...
    excise.errors.InputError: forgotten_share_left must be at most partly_share_left (0.5), not 0.6.
    """

    forgotten_share_left: float = 0.2
    """Of the way from the original to retraining, so much may be left for "forgotten" ..."""
    partly_share_left: float = 0.5
    """... and so much for "partly forgotten"."""
    unchanged_share_of_distance: float = 0.95
    """Beyond this share of the original's distance to a single retrained model, whose floor is not known, nothing was
    forgotten."""
    measurable_times_floor: float = 1.5
    """The original must be so many times farther from retrained models than these from each other for its distance to
    mean anything."""
    telling_mean_z_standard_errors: float = 3.0
    """So many standard errors above 0 the original's mean z on the forgotten samples must lie to say anything."""
    overshot_mean_z: float = 0.5
    """So far below the lowest of the original's and the retrained models' mean z the forgotten samples are answered
    worse than retrained models do; new retrainings were at most 0.25 below in 95 of 100 cases, with 40 samples and
    three models, and 0.14 with five (``python -m experiments.new_retrainings``) ..."""
    overshot_standard_errors: float = 3.0
    """... and at least by so many standard errors of a mean over the samples, where these are few: 0.87 for 12 samples,
    where new retrainings were at most 0.47 below."""
    moved_times_usual: float = 1.25
    """So many times the |z| of the original and of the farthest retrained model, other samples were moved; new
    retrainings were at most at 1.06 times that of three others in 95 of 100 cases, and at 1.03 times that of five
    (``python -m experiments.new_retrainings``)."""
    unmoved_feature_distance: float = 1e-9
    """Up to this distance (1 − CKA) from the original's, inner features are the same: weights that differ by 1 part in
    30,000 move them farther."""
    hidden_feature_share_left: float = 0.9
    """Where more of the original's distance to retrained models' features is left on the forgotten samples, their
    answers alone were changed."""
    unqualified_claim_models: float = 8
    """With fewer retrained models "forgotten" is said to be a weak claim; from here on more of them hardly narrow what
    |z| tells (``experiments/models_for_a_claim.py``)."""
    noticed_accuracy_lost: float = 0.01
    """More is a warning."""
    damaging_accuracy_lost: float = 0.03
    """More, beyond chance, is damage."""
    implausible_accuracy_gained: float = 0.1
    """On retained samples; no unlearning gains so much, so the original is another model."""
    useless_interval_width_of_auc: float = 0.5
    """A wider interval of an attack's AUC tells nothing."""
    negligible_mean_loss: float = 0.01
    """Below it, steps of learning again tell nothing."""
    quick_share_of_steps: float = 0.5
    """Learning again in less than this share of a retrained model's steps shows that a trace is left."""
    alike_few_shot_accuracy: float = 0.03
    """Few-shot accuracies that differ by no more are the same."""
    assumed_few_shot_deviation: float = 0.03
    """Standard deviation of retrained models' few-shot accuracies, taken where there is a single model."""
    telling_few_shot_deviations: float = 3.0
    """So many of these deviations the original must lie above retrained models for the probe to say anything."""
    few_samples: float = 20
    """Up to so many forgotten samples the verdict adds that they are few."""

    def __post_init__(self) -> None:
        for field in fields(self):
            number(getattr(self, field.name), field.name)
        for low, high in (
            ("forgotten_share_left", "partly_share_left"),
            ("noticed_accuracy_lost", "damaging_accuracy_lost"),
        ):
            most = getattr(self, high)
            require(getattr(self, low) <= most, low, getattr(self, low), f"at most {high} ({most:g})")


USUAL = Thresholds()
