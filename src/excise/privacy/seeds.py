"""Noise of a given seed: a warning that it is for tests, and a memory of what each seed has blurred in this process.

Two models with the same noise show the difference of their weights, and one model with twice the noise of another shows
the weights themselves. So a seed serves for one vector and one size of noise, unless it is meant to be repeated.
"""

from __future__ import annotations

import hashlib
import secrets
import threading

from torch import Tensor

from excise.errors import InputError, warn

_SECRET = secrets.token_bytes(32)  # so that what is remembered tells nothing about the weights
_USED: dict[tuple[int, int], bytes] = {}
_LOCK = threading.Lock()


class SeededNoiseWarning(UserWarning):
    """Noise is drawn from a given seed, so that whoever knows or guesses the seed can take it off again."""


def warn_of_seed() -> None:
    """Say that noise of a given seed is for tests."""
    warn(
        "noise_seed is for tests: whoever knows or guesses the seed can take the noise off again. Leave it out for "
        "noise that hides something.",
        SeededNoiseWarning,
    )


def claim_seed(seed: int, earlier: int, vector: Tensor, sigma: float) -> None:
    """Remember what the seed blurs after so many earlier removals; refuse it for anything else."""
    content = hashlib.blake2b(key=_SECRET, digest_size=32)
    content.update(f"{tuple(vector.shape)} {float(sigma).hex()} ".encode())
    content.update(vector.detach().cpu().double().contiguous().numpy().tobytes())
    digest = content.digest()
    with _LOCK:
        if _USED.setdefault((seed, earlier), digest) != digest:
            raise InputError(
                f"noise_seed={seed} has blurred other weights in this process already, and the difference of two "
                "models with the same noise shows their weights; leave noise_seed out, pass another one, or, for a "
                f"reproduction that is to hide nothing, Privacy(noise_seed={seed}, repeatable=True)."
            )
