"""The outcome of a request: the model without the samples, what was changed and why, and what is guaranteed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import nn

from excise import processes
from excise._support.files import write_json
from excise.errors import InputError
from excise.privacy.certificate import Certificate
from excise.task.fingerprint import Fingerprint
from excise.task.sharded import is_sharded, refuse_sharded
from excise.task.task import Task
from excise.task.weights import load_weights, save_weights

PAIRS = ("forget_loss", "retain_loss", "held_out_loss", "forget_accuracy", "retain_accuracy", "held_out_accuracy")
LATER = frozenset({*PAIRS[2:], "shortened"})
"""What records of earlier versions lack."""
NUMBERS = ("seconds", "step_share")
MAPPINGS = ("scores", "stages", "settings")


@dataclass(frozen=True, eq=False)
class Forgotten:
    """A model without some samples, and how it came about."""

    model: nn.Module
    ids: tuple[int, ...]
    """What this request was for: positions in the training set."""
    slices: tuple[str, ...]
    """Names of the slices that were updated."""
    scores: dict[str, float]
    """Why: for each slice that L-FOCI picked, the sum of its T over the samples."""
    seconds: float
    stages: dict[str, float]
    """Seconds by stage."""
    step_share: float
    """How much of the step was taken: less than 1 where the guard or the line search shortened it."""
    parameters_changed: int
    forget_loss: tuple[float, float]
    """Mean loss of the forgotten samples before and after."""
    retain_loss: tuple[float, float]
    """Mean loss of a sample of those retained, before and after."""
    held_out_loss: tuple[float, float] | None = None
    """Mean loss of up to 256 samples of the test set, before and after; None without a test set."""
    forget_accuracy: tuple[float, float] | None = None
    """Share of the forgotten samples that are answered rightly, before and after; None where targets are no classes."""
    retain_accuracy: tuple[float, float] | None = None
    """The same of a sample of those retained, the guard's, weighted so that it speaks for all."""
    held_out_accuracy: tuple[float, float] | None = None
    """The same of the samples of the test set."""
    shortened: str = ""
    """Why ``step_share`` is less than 1, in words: the guard, a step as long as the weights, or a line search."""
    forgotten: tuple[int, ...] = ()
    """All that is gone from the model: by this request and by earlier ones."""
    keys: tuple[Hashable, ...] | None = None
    """The user's own keys that this request named; None where it named positions."""
    before: nn.Module | None = field(default=None, repr=False)
    """The model before this request, as it was given out; None where it was read from a file."""
    settings: dict[str, Any] = field(default_factory=dict)
    """By which method, with all its options, guard and seed."""
    _certify: Callable[[], Certificate] | None = field(default=None, repr=False)
    _certificate: list[Certificate] = field(default_factory=list, repr=False)
    _read: Callable[[], Fingerprint] | None = field(default=None, repr=False)
    _fingerprint: list[Fingerprint] = field(default_factory=list, repr=False)
    _processes: int = field(default=1, repr=False)
    """By how many it was made, which then certify it together; the first of them writes it."""

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Of the training set that positions are positions in; computed on first use, with a pass over it."""
        if not self._fingerprint and self._read is not None:
            self._fingerprint.append(self._read())
        return self._fingerprint[0] if self._fingerprint else None

    @property
    def certificate(self) -> Certificate:
        """What is guaranteed; computed on first use, with a pass over the retained samples.

        What several processes made they certify together: all of them have to ask. For a record, one does it alone.
        """
        if self._certificate and processes.count() == 1:
            return self._certificate[0]
        with processes.together("Forgotten.certificate") if self._processes > 1 else nullcontext():
            if processes.any_of(not self._certificate, "whether the certificate is known"):
                if self._certify is None:
                    raise InputError("this outcome has no certificate: its record was read from a file that has none.")
                self._certificate[:] = [self._certify()]
        return self._certificate[0]

    @property
    def has_certificate(self) -> bool:
        """Whether there is one, or can be: a record may have none."""
        return bool(self._certificate) or self._certify is not None

    def __getstate__(self) -> dict[str, Any]:
        """For pickling: all but the way to the data, so that what has to be read from them is read now."""
        _ = self.fingerprint, self._recorded_certificate()
        return {**vars(self), "_certify": None, "_read": None, "before": None}

    def as_dict(self) -> dict[str, Any]:
        """All but the model, in plain values, for a record; computes the certificate."""
        record = {one.name: getattr(self, one.name) for one in fields(self) if one.name[0] != "_"}
        del record["model"], record["before"]
        record["fingerprint"] = None if self.fingerprint is None else asdict(self.fingerprint)
        certificate = self._recorded_certificate()
        record["certificate"] = None if certificate is None else asdict(certificate)
        plain: dict[str, Any] = _plain(record)
        return plain

    def _recorded_certificate(self) -> Certificate | None:
        """The certificate, if there is one, without the help of processes that are not here."""
        if is_sharded(self.model) and not self._certificate:
            return None  # nobody can run it alone
        with processes.alone() if processes.count() == 1 else nullcontext():
            return self.certificate if self.has_certificate else None

    def save(self, path: str | Path) -> None:
        """Write the weights with the whole record beside them (.safetensors), or the record alone (.json).

        Weights that are saved this way tell ``excise forget``, and ``Unlearner.load``, what is gone from them. Of
        several processes that made it the first writes, and the others go on.
        """
        path = Path(path)
        if path.suffix != ".json":
            refuse_sharded(self.model, "a file of weights")
        if self._processes > 1 and not processes.is_first():
            return
        if path.suffix == ".json":
            write_json(path, self.as_dict())
        elif path.suffix == ".safetensors":
            save_weights(self.model, path, record=self.as_dict())
        else:
            raise InputError(f"{path}: an outcome is saved as .safetensors, with its weights, or .json, without them.")

    @classmethod
    def load(cls, path: str | Path, task: Task) -> Forgotten:
        """Read what ``save`` wrote as .safetensors: a model built as the task's, and its record."""
        model = copy.deepcopy(task.model)
        record = load_weights(model, Path(path))
        if record is None:
            raise InputError(f"{path}: holds weights without a record; was it saved by excise?")
        done = cls.from_record(record, model, str(path))
        if done.fingerprint is not None:
            task.fingerprint.require_same(done.fingerprint, str(path))
        return done

    @classmethod
    def from_record(cls, record: Mapping[str, Any], model: nn.Module, whose: str = "the record") -> Forgotten:
        """An outcome from its record (see ``as_dict``) and its model."""
        names = {one.name for one in fields(cls) if one.name[0] != "_"} - {"model", "before"} | {"fingerprint"}
        needed = names - LATER
        if isinstance(record, Mapping) and "ledger" in record:
            raise InputError(
                f"{whose} is a model version of a ledger, which alone knows what is gone from it; later requests go "
                "through the ledger, see excise requests submit."
            )
        if not isinstance(record, Mapping) or not needed <= set(record):
            missing = sorted(needed - set(record)) if isinstance(record, Mapping) else sorted(needed)
            raise InputError(f"{whose} is no record of a deletion by excise, or is damaged: it lacks {missing[0]}.")
        try:
            values = {name: _as_field(name, record.get(name)) for name in names - {"fingerprint"}}
            certificate = record.get("certificate")
            kept = [] if certificate is None else [Certificate.from_dict(certificate, whose)]
            printed = [] if record["fingerprint"] is None else [Fingerprint.from_dict(record["fingerprint"], whose)]
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"{whose} is damaged: {error}.") from None
        _require_consistent(values["ids"], values["forgotten"], printed, whose)
        return cls(model=model, **values, _certificate=kept, _fingerprint=printed)

    def summary(self) -> str:
        """What happened, in a few lines."""
        lines = [
            f"forgot {self._what()} in {self.seconds:.2f} s",
            f"changed {counted(self.parameters_changed, 'parameter')}{self._where()}",
            _change("loss of the forgotten", self.forget_loss, self.forget_accuracy),
            _change("loss of a retained sample", self.retain_loss, self.retain_accuracy),
        ]
        if self.held_out_loss is not None:
            lines.append(_change("loss of held-out samples", self.held_out_loss, self.held_out_accuracy))
        if self.shortened:
            lines.append(self.shortened)
        earlier = len(self.forgotten) - len(self.ids)
        if earlier > 0:
            lines.append(f"forgotten before: {counted(earlier, 'sample')}, which stay forgotten")
        return "\n".join(lines)

    def _where(self) -> str:
        """In which slices; of methods that have none, nothing."""
        return f" in {counted(len(self.slices), 'slice')}" if self.slices else ""

    def _what(self) -> str:
        samples = counted(len(self.ids), "sample")
        return samples if self.keys is None else f"{counted(len(self.keys), 'key')} ({samples})"


def _change(what: str, loss: tuple[float, float], accuracy: tuple[float, float] | None) -> str:
    line = f"{what}: {loss[0]:.4f} before, {loss[1]:.4f} after"
    return line if accuracy is None else f"{line}; accuracy {accuracy[0]:.1%} before, {accuracy[1]:.1%} after"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 sample, 2 samples."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _plain(value: Any) -> Any:
    """What JSON can hold: it has neither tuples nor NaN, and keys may be anything."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)


def _as_field(name: str, value: Any) -> Any:
    """As the dataclass has it: what JSON made a list is a tuple."""
    if name in ("ids", "forgotten"):
        if not isinstance(value, list | tuple) or not all(_is_count(one) for one in value):
            raise ValueError(f"{name} must be whole numbers")
        return tuple(value)
    if name in LATER and value is None:
        return "" if name == "shortened" else None
    if name == "shortened" and not isinstance(value, str):
        raise ValueError(f"{name} must be a sentence")
    if name in NUMBERS:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{name} must be a number")
        return float(value)
    if name == "parameters_changed" and not _is_count(value):
        raise ValueError(f"{name} must be a whole number")
    if name in MAPPINGS and not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping")
    if name in ("scores", "stages"):
        if not all(isinstance(one, int | float | None) for one in value.values()):
            raise ValueError(f"{name} must hold numbers")
        return {key: one if one is None else float(one) for key, one in value.items()}
    if name in PAIRS:
        first, second = (math.nan if one is None else float(one) for one in value)
        return first, second
    if name in ("slices", "keys"):
        if not isinstance(value, list | tuple | None) or (value is None and name == "slices"):
            raise ValueError(f"{name} must be a list")
        return None if value is None else tuple(map(str if name == "slices" else _as_key, value))
    return value


def _require_consistent(ids: tuple[int, ...], gone: tuple[int, ...], printed: list[Fingerprint], whose: str) -> None:
    """Refuse positions that contradict each other: a later request would learn what this one forgot."""
    samples = printed[0].samples if printed else math.inf
    if not ids or len(set(ids)) != len(ids) or len(set(gone)) != len(gone) or not set(ids) <= set(gone):
        raise InputError(f"{whose} is damaged: ids must be some, each once, and all of them among forgotten.")
    if max(gone) >= samples:
        raise InputError(f"{whose} is damaged: forgotten has {max(gone)}, and the training set had {samples} samples.")


def _as_key(value: Any) -> Hashable:
    """As the user has it: a tuple, which JSON made a list."""
    if isinstance(value, Mapping):
        raise ValueError("keys must hold words, numbers or lists of such")
    return tuple(map(_as_key, value)) if isinstance(value, list) else value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
