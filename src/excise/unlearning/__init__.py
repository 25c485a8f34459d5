"""Deleting samples from a trained model."""

from excise.unlearning.auto import Auto
from excise.unlearning.calibrated import Calibrated
from excise.unlearning.descent import Descent
from excise.unlearning.drift import Drift
from excise.unlearning.exact import Exact
from excise.unlearning.forgotten import Forgotten
from excise.unlearning.guard import Guard
from excise.unlearning.method import Applied, Method, Removal, Workspace, method_named, method_names, register
from excise.unlearning.paper import PaperStep
from excise.unlearning.predicted import Predicted
from excise.unlearning.selection import (
    AllSlices,
    AtRandom,
    Joint,
    LargestChange,
    OneSlice,
    PerLayer,
    SliceSelection,
)
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

__all__ = [
    "AllSlices",
    "Applied",
    "AtRandom",
    "Auto",
    "Calibrated",
    "Descent",
    "Drift",
    "Exact",
    "Forgotten",
    "Guard",
    "Joint",
    "LargestChange",
    "Method",
    "OneSlice",
    "PaperStep",
    "PerLayer",
    "Predicted",
    "Removal",
    "SliceSelection",
    "Step",
    "Unlearner",
    "Workspace",
    "method_named",
    "method_names",
    "register",
]
