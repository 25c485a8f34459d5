"""What a batch is: inputs and labels, as a tuple or a list, or as a mapping with ``"labels"``. No other module knows.

Where a mapping has no ``"labels"``, its ``"label"`` is taken, as sets of Hugging Face's have it.

The inputs of a batch are a tensor, or a mapping of some: ``input_ids`` are tokens, of which ``attention_mask`` tells
the padding, and the first entry of real numbers is what can be altered a little, such as an image. A mapping with
tokens has no such entry: what else is in it only describes the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from excise.errors import InputError

Batch = Any
Inputs = Any
LABELS, LABEL, TOKENS, MASK = "labels", "label", "input_ids", "attention_mask"


def inputs_of(batch: Batch) -> Inputs:
    """What a batch (or a sample) asks; a batch that is a tensor is all inputs.

    >>> inputs_of(("film", 1)), inputs_of({"text": "film", "labels": 1})
    ('film', {'text': 'film'})
    """
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name != _label_entry(batch)}
    return batch[0] if hasattr(batch, "__getitem__") and not isinstance(batch, Tensor) else batch


def labels_of(batch: Batch) -> Any:
    """What a batch should be answered with."""
    if not isinstance(batch, Mapping):
        return batch[1]
    name = _label_entry(batch)
    if name not in batch:
        raise InputError(
            f"a batch that is a mapping needs an entry 'labels' or 'label', and has {', '.join(map(repr, batch))}; or "
            "pass forward= to Task."
        )
    return batch[name]


def _label_entry(batch: Mapping[str, Any]) -> str:
    """What the labels are called: as Hugging Face's models name them, or else as its sets do."""
    return LABELS if LABELS in batch or LABEL not in batch else LABEL


def label_of(sample: Any) -> Any:
    """The label of a single sample; empty where it has none."""
    return sample.get(_label_entry(sample), "") if isinstance(sample, Mapping) else sample[1]


def answer(model: Any, batch: Batch) -> Any:
    """What a model says about a batch: entries of a mapping are its arguments, and of its outputs the logits count."""
    if not isinstance(batch, Mapping):
        return model(inputs_of(batch))
    outputs = model(**inputs_of(batch))
    return outputs.logits if hasattr(outputs, "logits") else outputs


def require_tensor(outputs: Any) -> Tensor:
    """The outputs, if they are one tensor."""
    if isinstance(outputs, Tensor):
        return outputs
    kind = type(outputs).__name__
    raise InputError(
        f"the model's outputs must be one tensor, not a {kind}; pass forward= to Task, which picks what the loss is "
        "taken of, such as forward=lambda model, batch: (model(batch[0])[0], batch[1])."
    )


def require_pair(answered: Any) -> tuple[Tensor, Tensor]:
    """What a ``forward`` of one's own gives, if that is outputs and targets."""
    if isinstance(answered, tuple | list) and len(answered) == 2 and all(isinstance(one, Tensor) for one in answered):
        return answered[0], answered[1]
    raise InputError(
        f"forward must give outputs and targets, two tensors, not a {type(answered).__name__}"
        f"{_kinds(answered)}; such as forward=lambda model, batch: (model(batch[0])[0], batch[1])."
    )


def _kinds(answered: Any) -> str:
    if not isinstance(answered, tuple | list):
        return ""
    return f" of {', '.join(type(one).__name__ for one in answered[:3])}"


def refuse_tables(data: Any, name: str) -> None:
    """Refuse data that are not indexed by the positions of samples."""
    if hasattr(data, "iloc"):  # of pandas and its like
        raise InputError(
            f"{name} is a {type(data).__name__}, whose positions name columns; make a data set of it: "
            'TensorDataset(torch.tensor(table[features].to_numpy(), dtype=torch.float32), torch.tensor(table["label"]'
            ".to_numpy()))."
        )
    if isinstance(data, Mapping):
        raise InputError(
            f"{name} is a mapping, whose entries are not samples; pass a list of samples, a TensorDataset, or one "
            f"of several sets, such as {name}['train']."
        )


def with_inputs(batch: Batch, inputs: Inputs) -> Batch:
    """The batch with other inputs for the same labels.

    >>> with_inputs(("film", 1), "song"), with_inputs({"text": "film", "labels": 1}, {"text": "song"})
    (['song', 1], {'text': 'song', 'labels': 1})
    """
    if isinstance(batch, Mapping):
        return {**inputs, **{name: batch[name] for name in batch if name == _label_entry(batch)}}
    return [inputs, *batch[1:]] if isinstance(batch, list | tuple) else inputs


def repeated(batch: Batch, copies: int) -> Batch:
    """Copies of a batch (or of inputs) of one sample; they share memory.

    >>> repeated([torch.tensor([[1, 2]]), torch.tensor([3])], 2)
    [tensor([[1, 2],
            [1, 2]]), tensor([3, 3])]
    """
    return map_tensors(batch, lambda tensor: tensor.expand(copies, *tensor.shape[1:]))


def part(inputs: Inputs, some: slice) -> Inputs:
    """Some of the samples."""
    return map_tensors(inputs, lambda tensor: tensor[some])


def joined(parts: Sequence[Inputs]) -> Inputs:
    """The samples of all parts, one after the other."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: joined([one[name] for one in parts]) for name in first}
    return torch.cat(list(parts)) if isinstance(first, Tensor) else first


def map_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with a function applied to every tensor; sequences become lists, and mappings dictionaries."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(value, function) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [map_tensors(value, function) for value in batch]
    return batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with all its tensors on the device."""
    return map_tensors(batch, lambda tensor: tensor.to(device))


def to_double(batch: Batch) -> Batch:
    """The batch with its real numbers in double precision."""
    return map_tensors(batch, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def tensors_in(inputs: Inputs) -> list[Tensor]:
    """All tensors of the inputs."""
    values = inputs.values() if isinstance(inputs, Mapping) else [inputs]
    return [value for value in values if isinstance(value, Tensor)]


def real_values(inputs: Inputs) -> Tensor | None:
    """The inputs that can be altered a little, such as an image; None where there are none, as with tokens.

    >>> real_values({"pixel_values": torch.tensor([0.5]), "size": torch.tensor([1])})
    tensor([0.5000])
    >>> real_values({"input_ids": torch.tensor([7]), "attention_mask": torch.tensor([1.0])}) is None
    True
    """
    if isinstance(inputs, Mapping):
        name = _real_entry(inputs)
        return None if name is None else inputs[name]
    return inputs if _is_real(inputs) else None


def with_real_values(inputs: Inputs, values: Tensor) -> Inputs:
    """The inputs with others in place of the ``real_values``."""
    return {**inputs, _real_entry(inputs): values} if isinstance(inputs, Mapping) else values


def tokens_in(inputs: Inputs, name: str = TOKENS) -> Any:
    """The ids of a text: the entry of a mapping, None where it has none; other inputs as they are."""
    return inputs.get(name) if isinstance(inputs, Mapping) else inputs


def with_tokens(inputs: Inputs, tokens: Tensor, name: str = TOKENS) -> Inputs:
    """The inputs with other tokens."""
    return {**inputs, name: tokens} if isinstance(inputs, Mapping) else tokens


def token_mask(inputs: Inputs) -> Tensor | None:
    """Not 0 where a text has tokens and 0 where it is padded, samples × tokens; None where nobody tells."""
    mask = inputs.get(MASK) if isinstance(inputs, Mapping) else None
    return mask if isinstance(mask, Tensor) else None


def shown_input(inputs: Inputs) -> Any:
    """What to show of a sample: of a mapping its real numbers, else its tokens, else what comes first."""
    if not isinstance(inputs, Mapping):
        return inputs
    name = _real_entry(inputs) or TOKENS
    return inputs[name] if name in inputs else next(iter(inputs.values()), None)


def _real_entry(inputs: Mapping[str, Any]) -> str | None:
    """The name of the first real-valued entry; a mask is none, and beside tokens there are only descriptions."""
    if TOKENS in inputs:
        return None
    return next((name for name, value in inputs.items() if name not in (MASK, LABELS) and _is_real(value)), None)


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
