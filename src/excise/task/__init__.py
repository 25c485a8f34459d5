"""The problem: a model, its loss and its data."""

from excise.task.ids import Ids, positions
from excise.task.loading import load_task
from excise.task.parameters import trained_parameters
from excise.task.task import Batch, Task, evaluating
from excise.task.weighting import SampleWeighted

__all__ = ["Batch", "Ids", "SampleWeighted", "Task", "evaluating", "load_task", "positions", "trained_parameters"]
