"""The kinds of layers that are known, a file for each family; importing them makes them known."""

from excise.slices.kinds import attention, convolution, embedding, linear

__all__ = ["attention", "convolution", "embedding", "linear"]
