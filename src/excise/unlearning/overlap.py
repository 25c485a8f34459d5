"""Held-out samples that are training samples: a model knows both alike, so that nothing would seem to need forgetting.

The same sample gets the same answer to the last digits, so that answers tell what overlaps: no sample is read for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from excise.errors import warn

SAME = 1e-6  # of the margins' standard deviation, by which the answers to one sample may differ
SOME, FEW = 0.25, 0.02  # share of the held-out samples that may be like training samples by chance, and of very few
DISTINCT = 0.5  # share of answers that must differ from each other for equal ones to tell anything


class OverlapWarning(UserWarning):
    """Many held-out samples get exactly the answers that training samples get."""


def warn_of_overlap(known: Tensor, held_out: Tensor, count: int) -> None:
    """Warn where samples of the test set seem to be in the training set.

    Args:
        known: Margins of training samples, all or some.
        held_out: Margins of test samples.
        count: How many training samples there are.
    """
    if len(known.unique()) < DISTINCT * len(known):  # as of tables with few different rows, or of a model that guesses
        return
    share = float(is_among(held_out, known, SAME * float(known.std())).double().mean())
    if share > max(FEW, SOME * len(known) / count):
        warn(
            f"{share:.0%} of the samples of test_set that were looked at get exactly the answers of training samples, "
            f"of which {len(known)} of {count} were looked at: does test_set overlap train_set? Samples that the model "
            "was trained on can't tell what it says about others, so that too little would be forgotten.",
            OverlapWarning,
        )


def is_among(values: Tensor, others: Tensor, within: float) -> Tensor:
    """Which values are among the others, or so near to one of them.

    >>> is_among(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.01]), 0.1).tolist()
    [False, True]
    """
    ordered = others.sort().values
    above = torch.searchsorted(ordered, values.contiguous()).clamp(max=len(ordered) - 1)
    near = torch.stack([ordered[above], ordered[(above - 1).clamp(min=0)]])
    return ((near - values).abs() <= within).any(0)
