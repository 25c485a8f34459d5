"""Models in bfloat16: inputs as they take them, outputs and sums in single precision, and rounding that loses nothing.

The gap between two numbers of bfloat16 is 1/128 of their size, more than most steps of forgetting. Rounded to the
nearest number such a step is none at all. Rounded up or down at random, in proportion to how near each is, it is right
on average.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from excise.task.batches import Batch, inputs_of, map_tensors, with_inputs

SHORT = (torch.bfloat16, torch.float16)
DROPPED = 16  # bits that a number of single precision has more


def in_single(tensor: Tensor) -> Tensor:
    """A tensor of half precision in single precision; others as they are."""
    return tensor.float() if tensor.dtype in SHORT else tensor


def precision_of_sums(dtype: torch.dtype) -> torch.dtype:
    """In which sums over many samples of values of this precision are made."""
    return torch.float32 if dtype in SHORT else dtype


def fitting(batch: Batch, model: nn.Module) -> Batch:
    """The batch with real inputs in the precision of a model in half precision; for others as it is."""
    weight = next((one for one in model.parameters() if one.is_floating_point()), None)
    if weight is None or weight.dtype not in SHORT:
        return batch
    dtype = weight.dtype
    inputs = map_tensors(inputs_of(batch), lambda one: one.to(dtype) if one.dtype == torch.float32 else one)
    return with_inputs(batch, inputs)


def rounded_at_random(values: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers of single precision in bfloat16: one of the two nearest, right on average.

    >>> third = torch.full((30_000,), 1 + 1 / 384)  # a third of the way from 1 to the next number of bfloat16
    >>> found = rounded_at_random(third, torch.Generator().manual_seed(0))
    >>> sorted(set(found.tolist())), abs(float(found.float().mean()) - float(third[0])) < 1e-4
    ([1.0, 1.0078125], True)
    """
    bits = values.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << DROPPED, bits.shape, generator=generator, dtype=torch.int32).to(bits.device)
    kept = torch.bitwise_and(bits + noise, -(1 << DROPPED))
    return kept.view(torch.float32).to(torch.bfloat16)
