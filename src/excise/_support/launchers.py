"""What a launcher such as ``torchrun`` says about the processes that it started, by the environment."""

from __future__ import annotations

import os


def started_processes() -> int:
    """How many there are; 1 where nobody says so."""
    said = os.environ.get("WORLD_SIZE", "1")
    return int(said) if said.isdecimal() else 1


def is_first_started() -> bool:
    """Whether this is the one of them that speaks."""
    return started_processes() <= 1 or os.environ.get("RANK", "0") == "0"
