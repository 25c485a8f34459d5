"""The versions that models depend on: workers must have the same ones."""

from __future__ import annotations

import platform

from excise.errors import InputError

VERSIONS = (
    "(__import__('excise').__version__, __import__('torch').__version__.partition('+')[0], "
    "'.'.join(__import__('platform').python_version_tuple()[:2]))"
)
"""What a worker is asked for. It is a text, since functions of a package that a worker lacks can't be sent there."""


def versions_here() -> tuple[str, ...]:
    """Of excise, torch and Python."""
    import torch

    import excise

    python = ".".join(platform.python_version_tuple()[:2])
    return excise.__version__, torch.__version__.partition("+")[0], python


def require_same(theirs: tuple[str, ...], mine: tuple[str, ...], who: str) -> None:
    """Refuse a worker with other versions: its models would be others."""
    if theirs != mine:
        raise InputError(
            f"{who} has excise {theirs[0]}, torch {theirs[1]} and Python {theirs[2]}, and here are "
            f"{mine[0]}, {mine[1]} and {mine[2]}; install the same, since models of others would differ."
        )
