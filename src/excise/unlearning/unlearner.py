"""Unlearner: a session of deletions. It holds the model, what is gone from it, and the budget; methods do the work."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from excise import processes
from excise._support.checks import choice, require, whole
from excise._support.progress import Stages
from excise.errors import InputError
from excise.privacy.mechanism import Privacy
from excise.slices.slices import Slices
from excise.task import objective
from excise.task.fingerprint import Fingerprint
from excise.task.hooks import exclusive
from excise.task.ids import Ids, all_but, positions
from excise.task.requests import Request, parse_request
from excise.task.sharded import is_sharded, refuse_sharded
from excise.task.task import Task, evaluating
from excise.task.weights import portable_state, with_weights
from excise.training.batchnorm import reestimate
from excise.unlearning.agreement import require_alike, require_same_request
from excise.unlearning.answers import Answers
from excise.unlearning.convergence import check_convergence, require_finite
from excise.unlearning.copies import Copies, Holding
from excise.unlearning.forgotten import Forgotten
from excise.unlearning.guard import DEFAULT_GUARD, Guard, GuardSample, Retained, checked_guard, draw_guard_sample
from excise.unlearning.locking import Locked, one_at_a_time
from excise.unlearning.method import Applied, Method, Removal, Workspace, method_named, settings_of
from excise.unlearning.noise import blurred, certificate_of_noise, size_of_noise, spend
from excise.unlearning.performance import compared, look
from excise.unlearning.sharded import Shards
from excise.unlearning.suitability import check_task, naming_bad_samples


class Unlearner(Locked):
    """Makes a trained model forget samples, as if it had never seen them.

    Threads may share one: their requests are carried out one after the other.

    Args:
        task: The model, its loss and its data.
        method: How to forget: ``"auto"`` chooses, and says why. Else an object such as ``Predicted()``, ``Step()`` or
            ``Drift()``, which holds its options, or a name (``excise.method_names()`` lists them).
        guard: How much accuracy a request may cost, and how much loss; None for no guard.
        privacy: What noise rests on, for requests with ``epsilon`` and ``delta``.
        forgotten: Ids that were forgotten from the model before, by an unlearner that is no more: they count as gone,
            not as retained. Weights that ``Forgotten.save`` wrote know theirs, see ``Unlearner.load``.
        batch_statistics: Of batch normalisation: ``"keep"``, or ``"reestimate"`` on the retained samples, by a pass
            over them.
        seed: For everything random but the noise.
        n_jobs: Threads of L-FOCI; None for all cores.
        progress: Whether to show a bar, where it takes more than a second.
    """

    def __init__(
        self,
        task: Task,
        method: Method | str = "auto",
        *,
        guard: Guard | None = DEFAULT_GUARD,
        privacy: Privacy | None = None,
        forgotten: Ids = (),
        batch_statistics: Literal["keep", "reestimate"] = "keep",
        seed: int = 0,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> None:
        self._lock = threading.RLock()
        with processes.together("Unlearner"):
            self._begin(task, method, guard, privacy, forgotten, batch_statistics, seed, n_jobs, progress)

    def _begin(
        self,
        task: Task,
        method: Method | str,
        guard: Guard | None,
        privacy: Privacy | None,
        forgotten: Ids,
        batch_statistics: str,
        seed: int,
        n_jobs: int | None,
        progress: bool,
    ) -> None:
        """Check what was given, before any work is done."""
        self._holding: Holding = Shards() if is_sharded(task.model) else Copies()
        self.task, self.method = task, self._holding.method(method_named(method))
        self.privacy = Privacy() if privacy is None else privacy
        self.guard = checked_guard(guard, self.method)
        require(isinstance(self.privacy, Privacy), "privacy", privacy, "a Privacy or None")
        self._batch_statistics = choice(batch_statistics, ("keep", "reestimate"), "batch_statistics")
        if self._batch_statistics == "reestimate":
            refuse_sharded(task.model, 'batch_statistics="reestimate"')
        self._workspace = Workspace(task, whole(seed, "seed", 0), n_jobs)
        self._progress = progress and processes.is_first()
        self._length = len(task.train_set)
        self._forgotten: set[int] = set()
        if len(forgotten):
            self._forgotten = set(self._left_some(positions(forgotten, self._length).tolist()))
        self._model = self._published = task.model
        self._prepared: Any = None
        self._sample: GuardSample | None = None  # made by prepare, as is what the method prepares
        self._sample_losses: Tensor | None = None  # under the model as it is now
        self._answers: Answers | None = None  # the same
        require_alike(task, [self.settings, self.forgotten])
        with exclusive(task.model), self._holding.working():
            check_task(task, self._model, self.residual(), bfloat16=getattr(self.method, "takes_bfloat16", False))
            self.method.check(self._workspace)
            check_convergence(task, self._model, self.residual())

    @classmethod
    def load(cls, path: str | Path, task: Task, method: Method | str = "auto", **options: Any) -> Unlearner:
        """Go on from weights that ``Forgotten.save`` wrote: what is gone from them stays gone.

        The weights go into a copy of the task's model; weights of another training set or architecture are refused.
        """
        done = Forgotten.load(path, task)
        return cls(task.with_model(done.model), method, forgotten=done.forgotten, **options)

    @property
    def model(self) -> nn.Module:
        """The model as it was given out last."""
        return self._published

    @property
    def forgotten(self) -> tuple[int, ...]:
        """All ids forgotten so far."""
        return tuple(sorted(self._forgotten))

    @property
    def slices(self) -> Slices:
        """The slices of the model."""
        return self._workspace.slices

    @property
    def settings(self) -> dict[str, Any]:
        """Method, guard and all other options, in plain values, for records."""
        return {
            "method": settings_of(self.method),
            "guard": settings_of(self.guard),
            "privacy": self.privacy.settings,
            "batch_statistics": self._batch_statistics,
            "weight_decay": self.task.weight_decay,
            "seed": self._workspace.seed,
        }

    def residual(self, also: Iterable[int] = ()) -> Tensor:
        """Ids of the training samples that are left."""
        return all_but(list(self._forgotten | set(also)), self._length)

    @one_at_a_time
    def prepare(self) -> Unlearner:
        """Make what all requests share, such as kept curvature; the first ``forget`` does so too."""
        with processes.together("Unlearner.prepare"), self._holding.working():
            self._prepare()
        return self

    def _prepare(self) -> None:
        if self._sample is None:
            generator = torch.Generator().manual_seed(self._workspace.seed)
            residual = self.residual()
            order = residual[torch.randperm(len(residual), generator=generator)]
            few = None if self.guard is None else self.guard.samples
            with evaluating(self._model):
                ids = order[: self.method.samples(self._workspace, self._model)]
                sample = draw_guard_sample(self.task, self._model, order if few else ids, generator, few)
                self._sample_losses = sample.losses(self.task, self._model)
                if self.guard is not None:
                    self._answers = Answers.of(self.task, self._model, ids, self._workspace.seed)
                with naming_bad_samples(self.task, self._model, ids):
                    self._prepared = self._holding.prepare(self.method, self._workspace, self._model, ids)
            self._sample = sample

    @one_at_a_time
    def forget(
        self,
        what: Ids | str | Request | None = None,
        *,
        keys: Iterable[Hashable] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> Forgotten:
        """A model that has forgotten the samples, in addition to those of earlier requests.

        With ``epsilon`` and ``delta`` noise is added to all weights, of the size that Sekhari et al.'s bound on a
        Newton step asks for. It guarantees what the certificate says, and no more: a request that would not have the ε
        asked for is refused. Later requests go on from the weights before the noise, which are kept here: the unlearner
        is as secret as the training set. (The paper's method goes on from the noisy ones.)

        Args:
            what: Positions in the training set, or words that ``parse_request`` understands, such as ``"class:3"``.
            keys: Instead of these, the task's keys whose samples are to be forgotten.
            epsilon: ε of the guarantee; with ``delta``.
            delta: δ of the guarantee.
        """
        with processes.together("Unlearner.forget"):
            holding = self._holding
            with holding.working(), evaluating(self._model), holding.changing(self._model) as model:
                return self._forget(model, what, keys, epsilon, delta)

    def _forget(
        self,
        model: nn.Module,
        what: Ids | str | Request | None,
        keys: Iterable[Hashable] | None,
        epsilon: float | None,
        delta: float | None,
    ) -> Forgotten:
        named = keys if keys is None or isinstance(keys, str) else tuple(keys)
        asked = self._asked(what, named)
        with processes.across():
            require_same_request(asked, epsilon, delta, self.forgotten, model=self._model)
        if epsilon is not None or delta is not None:
            refuse_sharded(model, "noise for epsilon and delta")
        removed = len(self._forgotten) + len(asked)
        sigma = size_of_noise(self.privacy, self.method, self.task, self._model, removed, epsilon, delta)
        self.prepare()
        with Stages(enabled=self._progress) as stages:
            removal = self._removal(asked, self._workspace.seed, stages)
            require_finite(objective.losses_on(self.task, self._model, asked), asked)
            before = look(self.task, self._model, asked, removal.retained, self._workspace.seed)
            began = time.perf_counter()
            with naming_bad_samples(self.task, self._model, removal.residual):
                applied = self._holding.apply(self.method, self._workspace, self._prepared, model, removal)
            changed = self._changed(model, applied)
            losses = self._finished(model, applied, removal)
            self._holding.finish(model)
            certificate = None
            published, shown = model, losses
            if epsilon is not None:
                # now, as is the fingerprint below: nothing that is handed out leads to the weights before the noise,
                # nor to the task, whose model knows the samples
                certificate = certificate_of_noise(
                    self.privacy, self.method, self.task, model, removal, sigma, epsilon, delta
                )
                stages.begin("adding noise")
                size = sigma or certificate.sigma or 0.0
                published = blurred(
                    self.privacy, self.method, self._workspace, model, applied, size, len(self._forgotten)
                )
                shown = removal.retained.of_each(published)
        seconds = time.perf_counter() - began
        after = look(self.task, published, asked, removal.retained, self._workspace.seed)
        found = compared(before, after, removal.retained, shown)
        task, residual, holding = self.task, removal.residual, self._holding
        names = self.slices.name if applied.numbers else str
        done = Forgotten(
            model=published,
            ids=tuple(asked),
            slices=tuple(names(number) for number in sorted(applied.numbers)),
            scores={names(number): score for number, score in applied.scores.items()},
            seconds=seconds,
            stages=stages.seconds,
            step_share=applied.share,
            shortened=applied.shortened,
            parameters_changed=changed,
            **vars(found),
            forgotten=tuple(sorted(removal.gone)),
            keys=None if named is None else tuple(named),
            before=None if certificate is not None or published is self._published else self._published,
            settings=self.settings,
            _read=None if certificate is not None else lambda: task.fingerprint,
            _fingerprint=[] if certificate is None else [task.fingerprint],
            _certify=None if certificate is not None else lambda: holding.certified(task, published, residual),
            _certificate=[] if certificate is None else [certificate],
            _processes=max(processes.count(), processes.shards()),
        )
        onward = (published, shown) if getattr(self.method, "goes_on_from_noise", False) else (model, losses)
        known = removal.retained.answers
        answers = None if known is None else known.under(task, onward[0])
        if certificate is not None and epsilon is not None and delta is not None:
            spend(self.privacy, certificate, len(asked), epsilon, delta)
        with processes.across():
            processes.confirm("the end of the request")  # nothing that can fail comes after
        self._forgotten, self._published, self._answers = set(removal.gone), published, answers or self._answers
        self._model, self._sample_losses = onward
        return done

    @one_at_a_time
    def stability(self, ids: Ids, seeds: Iterable[int]) -> dict[str, float]:
        """For each slice that is ever chosen, the share of the seeds for which it is; the model is not changed."""
        asked = self._checked(ids)
        selection = getattr(self.method, "selection", None)
        if selection is None:
            raise InputError(f"{type(self.method).__name__} selects no slices, so there is no stability to tell.")
        counts: Counter[int] = Counter()
        runs = list(seeds)
        together = processes.together("Unlearner.stability")
        with together, self._holding.working(), evaluating(self._model), Stages(enabled=self._progress) as stages:
            self.prepare()
            for seed in runs:
                removal = self._removal(asked, seed, stages)
                counts.update(selection.select(self._workspace, self._prepared, self._model, removal).numbers)
        return {self.slices.name(number): count / len(runs) for number, count in sorted(counts.items())}

    @one_at_a_time
    def state_dict(self) -> dict[str, Any]:
        """Everything that a later process needs to go on: weights, what is gone, budget. As secret as the data."""
        budget = self.privacy.budget
        return {
            "model": portable_state(self._model),
            "published": None if self._published is self._model else portable_state(self._published),
            "forgotten": list(self.forgotten),
            "fingerprint": asdict(self.task.fingerprint),
            "budget": None if budget is None else budget.state_dict(),
            "settings": self.settings,
        }

    @one_at_a_time
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a saved unlearner of the same task was; after an error nothing has changed."""
        wanted = {"model", "published", "forgotten", "fingerprint", "budget", "settings"}
        if not isinstance(state, Mapping) or set(state) != wanted or not isinstance(state["forgotten"], list | tuple):
            raise InputError("state is no state_dict of an Unlearner, or is damaged; was it saved by excise?")
        self.task.fingerprint.require_same(Fingerprint.from_dict(state["fingerprint"], "state"), "state")
        gone = positions(state["forgotten"], self._length).tolist() if len(state["forgotten"]) else []
        model = with_weights(self.task.model, state["model"])
        published = model if state["published"] is None else with_weights(self.task.model, state["published"])
        if (state["budget"] is None) != (self.privacy.budget is None):
            raise InputError("state has a privacy budget where this unlearner has none, or the other way round.")
        if self.privacy.budget is not None:
            self.privacy.budget.load_state_dict(state["budget"])
        self._forgotten, self._model, self._published = set(gone), model, published
        self._sample = self._prepared = self._sample_losses = self._answers = None

    def _asked(self, what: Ids | str | Request | None, keys: Iterable[Hashable] | None) -> list[int]:
        if (what is None) == (keys is None):
            raise InputError("name the samples either by positions or by keys=, one of the two.")
        if keys is not None:
            what = self.task.ids_of(keys)
            self._refuse_forgotten_keys(keys)
        elif isinstance(what, str):
            what = parse_request(
                what, self.task, seed=self._workspace.seed, model=self._model, forgotten=self.forgotten
            ).ids
        elif isinstance(what, Request):
            what = what.ids
        return self._checked(what)

    def _refuse_forgotten_keys(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            if self._forgotten & set(self.task.ids_of([key])):
                raise InputError(f"keys has {key!r}, which is forgotten already, or some of its samples are.")

    def _checked(self, ids: Any) -> list[int]:
        if len(self.task.train_set) != self._length:
            raise InputError(
                f"train_set had {self._length} samples and now has {len(self.task.train_set)}; ids are positions in "
                "it, so it must stay as it is: make a new Unlearner for another one."
            )
        numbers: list[int] = positions(ids, self._length).tolist()
        for i in numbers:
            if i in self._forgotten:
                raise InputError(f"ids has {i}, which is forgotten already.")
        return self._left_some(numbers)

    def _left_some(self, numbers: list[int]) -> list[int]:
        if len(numbers) + len(self._forgotten) >= self._length:
            raise InputError("ids would leave no sample of train_set; a model of nothing must be trained anew.")
        return numbers

    def _removal(self, asked: list[int], seed: int, stages: Stages) -> Removal:
        gone = frozenset(self._forgotten | set(asked))
        if self._sample is None or self._sample_losses is None:
            raise InputError("call prepare() first.")
        residual = self.residual(also=asked)
        if not self._sample.weights_without(gone).any():  # the guard's samples are all forgotten: others take over
            generator = torch.Generator().manual_seed(self._workspace.seed + len(gone))
            order = residual[torch.randperm(len(residual), generator=generator)]
            few = None if self.guard is None else self.guard.samples
            self._sample = draw_guard_sample(self.task, self._model, order, generator, few)
            self._sample_losses = self._sample.losses(self.task, self._model)
        answers = None if self._answers is None else self._answers.without(self.task, asked, gone, residual)
        retained = Retained(self.task, self._sample, self.guard, self._sample_losses, gone, answers)
        return Removal(asked, residual, gone, seed, stages, retained)

    def _finished(self, model: nn.Module, applied: Applied, removal: Removal) -> Tensor:
        """Bring batch statistics up to date, and give the losses of the guard's samples."""
        if self._batch_statistics == "reestimate":
            removal.stages.begin("re-estimating batch statistics")
            reestimate(self.task, model, removal.residual)
        elif applied.losses is not None:
            return applied.losses
        return removal.retained.of_each(model)

    def _changed(self, model: nn.Module, applied: Applied) -> int:
        """How many weights are others now: some, and finite, or it is an error."""
        names = tuple(self.slices.name(number) for number in sorted(applied.numbers))
        return self._holding.changed(
            self._model, model, getattr(self.method, "name", type(self.method).__name__), names
        )
