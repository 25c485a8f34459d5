"""Cut training samples out of a trained PyTorch model, and find the columns that carry what is known about a target.

Names are imported on first use, so that ``import excise`` is quick and loads neither torch nor scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from excise.dependence import CodecTest, codec, codec_test, lcodec, xi
    from excise.errors import ExciseError, InputError, MissingExtraError, UndefinedWarning
    from excise.selection import Selection, foci, lfoci
    from excise.selector import FOCISelector

__version__ = "0.1.0.dev0"

_HOME = {
    "CodecTest": "dependence",
    "ExciseError": "errors",
    "FOCISelector": "selector",
    "InputError": "errors",
    "MissingExtraError": "errors",
    "Selection": "selection",
    "UndefinedWarning": "errors",
    "codec": "dependence",
    "codec_test": "dependence",
    "foci": "selection",
    "lcodec": "dependence",
    "lfoci": "selection",
    "xi": "dependence",
}

__all__ = [
    "CodecTest",
    "ExciseError",
    "FOCISelector",
    "InputError",
    "MissingExtraError",
    "Selection",
    "UndefinedWarning",
    "codec",
    "codec_test",
    "foci",
    "lcodec",
    "lfoci",
    "xi",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'excise' has no attribute {name!r}")
    return getattr(import_module(f"excise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
