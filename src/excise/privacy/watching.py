"""What else than its layer uses the trained weights: every operation of torch on them is seen while it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode, resolve_name

from excise.privacy.aliases import is_within, memory_of

_HARMLESS = frozenset(
    {"shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_cuda", "is_sparse", "is_quantized", "is_leaf"}
    | {"size", "dim", "numel", "stride", "is_floating_point", "is_complex", "element_size", "is_contiguous", "is_meta"}
    | {"is_nested", "is_mkldnn", "is_mps", "is_xpu", "get_device", "type", "__len__", "names", "is_inference"}
)
"""What tells the kind of a tensor, and nothing of its numbers."""


class WeightWatch(TorchFunctionMode):
    """Counts what is done with a linear layer's weights inside, apart from one use by the layer itself."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self._layer, self._memory = layer, memory_of(layer.parameters())
        self.own_uses = 0
        self.other_uses: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note a use of the weights, and go on."""
        options = {} if kwargs is None else dict(kwargs)
        if any(is_within(one, self._memory) for one in _tensors((*args, *options.values()))):
            self._note(func, args)
        return func(*args, **options)

    def _note(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if func is linear and len(args) == 3 and args[1] is self._layer.weight and args[2] is self._layer.bias:
            self.own_uses += 1
            return
        name = resolve_name(func) or getattr(func, "__name__", str(func))
        if name.removesuffix(".__get__").rpartition(".")[2] not in _HARMLESS:
            self.other_uses.append(name)


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for one in values:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors(one)
