"""Cut training samples out of a trained PyTorch model, and find the columns that carry what is known about a target.

Names are imported on first use, so that ``import excise`` is quick and loads neither torch nor scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from excise.auditing import Audit, audit
    from excise.comparing import Comparison, compare
    from excise.convergence import NotConvergedWarning
    from excise.dependence import CodecTest, codec, codec_test, lcodec, xi
    from excise.drift import Drift
    from excise.errors import (
        DataError,
        ExciseError,
        InputError,
        MissingExtraError,
        NeverSupportedError,
        NotYetSupportedError,
        UndefinedWarning,
    )
    from excise.exact import exact_fit
    from excise.forgotten import Forgotten
    from excise.privacy import BudgetAccountant, Certificate, RetrainRequired
    from excise.report import write_report
    from excise.requests import parse_request
    from excise.selection import Selection, foci, lfoci
    from excise.selector import FOCISelector
    from excise.task import Task
    from excise.training import GradientRecorder, GradientTrace, fit
    from excise.unlearn import NothingForgottenWarning, Unlearner
    from excise.views import Views

__version__ = "0.1.0.dev0"

_HOME = {
    "NotConvergedWarning": "convergence",
    "NothingForgottenWarning": "unlearn",
    "Audit": "auditing",
    "Comparison": "comparing",
    "Views": "views",
    "audit": "auditing",
    "compare": "comparing",
    "parse_request": "requests",
    "write_report": "report",
    "BudgetAccountant": "privacy",
    "Certificate": "privacy",
    "CodecTest": "dependence",
    "DataError": "errors",
    "Drift": "drift",
    "ExciseError": "errors",
    "FOCISelector": "selector",
    "GaussianNoise": "activations",
    "Forgotten": "forgotten",
    "GradientTrace": "training",
    "GradientRecorder": "training",
    "InputError": "errors",
    "MissingExtraError": "errors",
    "NeverSupportedError": "errors",
    "NotYetSupportedError": "errors",
    "ScaledNoise": "activations",
    "RetrainRequired": "privacy",
    "Selection": "selection",
    "TokenReplacement": "activations",
    "Task": "task",
    "UndefinedWarning": "errors",
    "Unlearner": "unlearn",
    "codec": "dependence",
    "codec_test": "dependence",
    "exact_fit": "exact",
    "fit": "training",
    "foci": "selection",
    "lcodec": "dependence",
    "lfoci": "selection",
    "xi": "dependence",
}

__all__ = [
    "Audit",
    "BudgetAccountant",
    "Certificate",
    "CodecTest",
    "Comparison",
    "DataError",
    "Drift",
    "ExciseError",
    "FOCISelector",
    "Forgotten",
    "GaussianNoise",
    "GradientRecorder",
    "GradientTrace",
    "InputError",
    "MissingExtraError",
    "NeverSupportedError",
    "NotConvergedWarning",
    "NotYetSupportedError",
    "NothingForgottenWarning",
    "RetrainRequired",
    "ScaledNoise",
    "Selection",
    "Task",
    "TokenReplacement",
    "UndefinedWarning",
    "Unlearner",
    "Views",
    "audit",
    "codec",
    "codec_test",
    "compare",
    "exact_fit",
    "fit",
    "foci",
    "lcodec",
    "lfoci",
    "parse_request",
    "write_report",
    "xi",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'excise' has no attribute {name!r}")
    return getattr(import_module(f"excise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
