"""Training a model, and training it again without some samples."""

from excise.training.loop import Fitted, Schedule, batch_sizes, fit, own_randomness
from excise.training.retraining import Retrained, retrain
from excise.training.several import retrainings
from excise.training.trace import GradientRecorder, GradientTrace

__all__ = [
    "Fitted",
    "GradientRecorder",
    "GradientTrace",
    "Retrained",
    "Schedule",
    "batch_sizes",
    "fit",
    "own_randomness",
    "retrain",
    "retrainings",
]
