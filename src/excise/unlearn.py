"""Unlearner: ties it together. Sample -> slices -> curvature -> step -> new model, with a certificate."""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from excise import objective
from excise.activations import Observation, Perturbation, observe
from excise.batchnorm import reestimate
from excise.choosing import WAYS, Choice, Way, choose_at_random, choose_jointly, choose_largest, choose_per_layer
from excise.convergence import check_convergence
from excise.curvature import Solver
from excise.denial import Denial
from excise.drift import Drift, drift
from excise.errors import InputError, warn
from excise.forgotten import Forgotten
from excise.inputs import choice, require, whole
from excise.linear import has_features
from excise.newton import CURVATURES, MOST_FEATURES, Curvature, Newton, cached_newton, sampled_newton, where_it_fits
from excise.noise import Noise, move
from excise.paper import PAPER_COPIES, paper_change
from excise.privacy import BudgetAccountant, Certificate, certify
from excise.probe import Probe, draw_probe
from excise.progress import Stages
from excise.slices import Block, Slices, everything, find_slices, trainable
from excise.task import Task, evaluating, positions, trained_parameters
from excise.training import GradientTrace
from excise.views import Lesson

COPIES = 128
MOST_TRIES = 8  # of shorter and shorter steps
LEAST_FORCE = 1 / 16  # that a drift is tried with
Selector = Callable[[Sequence[Observation], Slices], Iterable[int]]


class NothingForgottenWarning(UserWarning):
    """The guard allowed no step at all."""


@dataclass(frozen=True)
class Request:
    """What is to be forgotten, and what remains."""

    ids: list[int]
    residual: Tensor
    seed: int
    stages: Stages


@dataclass(frozen=True)
class Outcome:
    """Which slices were changed and why, and how much of the step was taken."""

    chosen: set[int]
    scores: dict[int, float]
    share: float
    losses: Tensor | None = None
    """Losses of the probe under the new model, where they are known."""


class Unlearner:
    """Makes a trained model forget samples, as if it had never seen them.

    Args:
        task: The model, its loss and its data.
        method: ``"excise"``, or ``"paper"`` for all choices as in the paper: joint L-FOCI over 1,000 copies, its
            rank-two curvature (which needs ``trace``), its noise, and later requests from the noisy weights. It is
            there to be compared with; of the options below it heeds ``selection``, ``copies``, ``perturbation``,
            ``seed``, ``noise_seed`` and ``n_jobs``.
        trace: The gradients of the last two epochs, from ``fit(..., recorder=True)`` or a ``GradientRecorder``.
        steps: How many block steps to take; more than one repeats on the objective without the samples, with the slices
            chosen anew and a line search.
        selection: How to choose the slices: ``"per-layer"`` (L-FOCI for each sample and layer, the most-voted share),
            ``"joint"`` (the paper's), ``"cheap"``, ``"one"``, ``"random"``, ``"largest-change"``, ``"all"``, or a
            function of the observations and the slices that gives slice numbers. None for ``"per-layer"``, and for
            the paper's method ``"joint"``.
        share: The most slices of a layer to update, as a share.
        copies: Perturbed copies of each sample; None for 128, and for the paper's method 1,000.
        watched: How many of the samples to perturb and watch, at the most.
        perturbation: How to perturb a sample; None for Gaussian noise on real-valued inputs.
        curvature: ``"cached"``, which ``prepare`` makes once for all requests (see ``kfac``; models with layers that
            it does not know fall back to ``"ggn"``), or computed for every request: ``"ggn"``, ``"hessian"``,
            ``"fisher"``.
        curvature_samples: How many retained samples to take it from; None for 1,000, and for convex models 20,000.
        solver: ``"auto"``, ``"cg"``, ``"cholesky"``; for curvature that is computed for every request.
        iterations: Iterations of conjugate gradients.
        step_size: Multiple of the Newton step.
        refine: ``"drift"`` or a ``Drift`` adds a pass over the retained samples (see ``drift``), which forgets better
            where it is affordable; None for the step alone.
        guard: The most that the mean loss of retained samples may rise, as a factor; None for no guard.
        guard_rise: A rise by this much always may be: near 0 a loss can double without harm.
        guard_samples: How many retained samples tell that rise; None for 64, and fewer where inputs are large. Losses
            that are near 0 but for a few samples need more, at the cost of every request.
        batch_statistics: Of batch normalisation: ``"keep"``, or ``"reestimate"`` on the retained samples, by a pass
            over them.
        lipschitz: L, a bound on the norm of every sample's gradient, weight decay included; needed for noise.
        hessian_lipschitz: M, a Lipschitz constant of the loss's Hessian; needed for noise.
        budget: What all requests together may spend; one that does not fit raises ``RetrainRequired``.
        seed: For everything random but the noise.
        noise_seed: For the noise. None for a fresh secret one: whoever knows the seed can subtract the noise again.
        noise_samples: For the paper's method: how many training samples to compute the noise for; None for those there
            are. The noise falls with their square, so that a study on a part of a data set would drown in it.
        n_jobs: Threads of L-FOCI; None for all cores.
        progress: Whether to show a bar, where it takes more than a second.
    """

    def __init__(
        self,
        task: Task,
        *,
        method: Literal["excise", "paper"] = "excise",
        trace: GradientTrace | None = None,
        steps: int = 1,
        selection: Way | Selector | None = None,
        share: float = 0.3,
        copies: int | None = None,
        watched: int = 16,
        perturbation: Perturbation | None = None,
        curvature: Curvature = "cached",
        curvature_samples: int | None = None,
        solver: Solver = "auto",
        iterations: int = 8,
        step_size: float = 1.0,
        refine: Literal["drift"] | Drift | None = None,
        guard: float | None = 1.5,
        guard_rise: float = 0.05,
        guard_samples: int | None = None,
        batch_statistics: Literal["keep", "reestimate"] = "keep",
        lipschitz: float | None = None,
        hessian_lipschitz: float | None = None,
        budget: BudgetAccountant | None = None,
        seed: int = 0,
        noise_seed: int | None = None,
        noise_samples: int | None = None,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> None:
        if choice(method, ("excise", "paper"), "method") == "paper":
            watched, guard, steps, refine = 1, None, 1, None
            _require_trace(trace, task)
        if selection is None:
            selection = "joint" if method == "paper" else "per-layer"
        if copies is None:
            copies = PAPER_COPIES if method == "paper" else COPIES
        if not callable(selection):
            choice(selection, WAYS, "selection")
        choice(curvature, CURVATURES, "curvature")
        choice(batch_statistics, ("keep", "reestimate"), "batch_statistics")
        choice(solver, ("auto", "cg", "cholesky"), "solver")
        counts = {"steps": steps, "copies": copies, "watched": watched, "iterations": iterations}
        optional = {
            "curvature_samples": curvature_samples,
            "guard_samples": guard_samples,
            "noise_samples": noise_samples,
        }
        counts |= {name: count for name, count in optional.items() if count is not None}
        for name, count in counts.items():
            whole(count, name)
        if isinstance(refine, str):
            choice(refine, ("drift",), "refine")
            refine = Drift()
        if noise_samples is not None and method != "paper":
            raise InputError('noise_samples is for method="paper" only: a guarantee holds for the samples there are.')
        require(0 < share <= 1, "share", share, "above 0 and at most 1")
        require(guard is None or guard >= 1, "guard", guard, "a factor of 1 or more, or None")
        require(guard_rise >= 0, "guard_rise", guard_rise, "0 or more")
        self.task = task
        self.slices = find_slices(task.model)
        self._model = self._published = task.model
        self._length = len(task.train_set)
        self._newton: Newton | None = None  # made by prepare, as is the probe
        self._probe: Probe | None = None
        self._probe_losses: Tensor | None = None  # under the model as it is now
        self._method, self._trace, self._progress = method, trace, progress
        self._batch_statistics, self._guard_rise, self._guard_samples = batch_statistics, guard_rise, guard_samples
        self._forgotten: set[int] = set()
        self._steps, self._selection, self._share = steps, selection, share
        self._copies, self._watched, self._perturbation = copies, watched, perturbation
        self._kind, self._curvature_samples = curvature, curvature_samples
        self._solver, self._iterations = solver, iterations
        self._refine = refine
        self._noise = Noise(method == "paper", lipschitz, hessian_lipschitz, noise_seed, noise_samples)
        self.budget = budget
        self._step_size, self._guard, self._seed, self._n_jobs = step_size, guard, seed, n_jobs
        check_convergence(task, self._model)

    @property
    def model(self) -> nn.Module:
        """The model as it was given out last."""
        return self._published

    @property
    def forgotten(self) -> tuple[int, ...]:
        """All ids forgotten so far."""
        return tuple(sorted(self._forgotten))

    def residual(self, also: Iterable[int] = ()) -> Tensor:
        """Ids of the training samples that are left."""
        keep = torch.ones(self._length, dtype=torch.bool)
        keep[list(self._forgotten | set(also))] = False
        return keep.nonzero().flatten()

    def prepare(self) -> Unlearner:
        """Make what all requests share, the kept curvature and a probe of retained samples; ``forget`` does so too."""
        if self._probe is None:
            generator = torch.Generator().manual_seed(self._seed)
            residual = self.residual()
            order = residual[torch.randperm(len(residual), generator=generator)]
            ids = order[: self._curvature_count()]
            with evaluating(self._model):
                among = ids if self._guard_samples is None else order
                self._probe = draw_probe(self.task, self._model, among, generator, self._guard_samples)
                self._probe_losses = self._probe.losses(self.task, self._model)
                if self._method != "paper":  # which has a curvature of its own
                    self._newton = where_it_fits(self._make_newton(ids))
        return self

    def forget(self, ids: Sequence[int], *, epsilon: float | None = None, delta: float | None = None) -> Forgotten:
        """A model that has forgotten the samples, in addition to those of earlier requests.

        With ``epsilon`` and ``delta`` noise is added to all weights, of the size that Sekhari et al.'s bound on a
        Newton step asks for. It guarantees what the certificate says, and no more. Later requests go on from the
        weights before the noise, which are kept here: the unlearner is as secret as the training set. (The paper's
        method goes on from the noisy ones.)
        """
        asked = self._checked(ids)
        removed = len(self._forgotten) + len(asked)
        sigma = self._noise.sigma(self.task, removed, epsilon, delta, self.budget)
        self.prepare()
        begin = time.perf_counter()
        with evaluating(self._model), Stages(enabled=self._progress) as stages:
            request = Request(asked, self.residual(also=asked), self._seed, stages)
            model = copy.deepcopy(self._model)
            forget_before = self._forget_loss(model, asked)
            retain_before = self._retained_loss(request, self._probe_losses)
            outcome = self._rule(model, request)
            if self._batch_statistics == "reestimate":
                stages.begin("re-estimating batch statistics")
                reestimate(self.task, model, request.residual)
            stale = outcome.losses is None or self._batch_statistics == "reestimate"
            losses = self._losses_of_probe(model) if stale else outcome.losses
            published, shown = model, losses
            if sigma is not None:
                stages.begin("adding noise")
                published = copy.deepcopy(model)
                blurred = self.slices.block(outcome.chosen) if self._method == "paper" else everything(published)
                self._noise.add(published, blurred, sigma, len(self._forgotten))
                shown = self._losses_of_probe(published)
            forget_after = self._forget_loss(published, asked)
        if self.budget is not None and epsilon is not None and delta is not None:
            self.budget.spend(epsilon, delta, removed=len(asked))
        seconds = time.perf_counter() - begin
        start, end = trainable(self._model), trainable(model)
        changed = sum(int((start[name] != end[name]).sum()) for name in end)
        self._forgotten |= set(asked)
        self._published = published
        self._model, self._probe_losses = (published, shown) if self._method == "paper" else (model, losses)
        return Forgotten(
            model=published,
            ids=tuple(asked),
            slices=tuple(self.slices.name(number) for number in sorted(outcome.chosen)),
            scores={self.slices.name(number): score for number, score in outcome.scores.items()},
            seconds=seconds,
            stages=stages.seconds,
            step_share=outcome.share,
            parameters_changed=changed,
            forget_loss=(forget_before, forget_after),
            retain_loss=(retain_before, self._retained_loss(request, shown)),
            # of the weights before the noise, and a pass over all that is left: when it is asked for
            _certify=lambda: self._certificate(model, request.residual, sigma, delta),
        )

    def stability(self, ids: Sequence[int], seeds: Iterable[int]) -> dict[str, float]:
        """For each slice that is ever chosen, the share of the seeds for which it is; the model is not changed."""
        asked = self._checked(ids)
        self.prepare()
        counts: Counter[int] = Counter()
        runs = list(seeds)
        residual = self.residual(also=asked)
        with evaluating(self._model), Stages(enabled=self._progress) as stages:
            for seed in runs:
                counts.update(self._choose(self._model, Request(asked, residual, seed, stages)).numbers)
        return {self.slices.name(number): count / len(runs) for number, count in sorted(counts.items())}

    def _curvature_count(self) -> int:
        """How many retained samples to take the curvature from."""
        if self._curvature_samples is not None:
            return self._curvature_samples
        linear = self._kind == "cached" and has_features(self.task, self._model, self.slices)
        return MOST_FEATURES if linear else 1000

    def _make_newton(self, ids: Tensor) -> Newton:
        if self._kind == "cached":
            moves_all = self._selection == "all" or (self._refine is not None and self._refine.everywhere)
            kept = cached_newton(
                self.task, self._model, self.slices, ids, self._iterations, self._seed, all_slices=moves_all
            )
            if kept is not None:
                return kept
        kind = "ggn" if self._kind == "cached" else self._kind
        return sampled_newton(self.task, ids, kind, self._solver, self._iterations)

    @property
    def _rule(self) -> Callable[[nn.Module, Request], Outcome]:
        """How a request is carried out: a function that changes the model in place."""
        if self._method == "paper":
            return self._as_in_the_paper
        if self._refine is not None:
            return self._by_drift
        return self._by_step if self._steps == 1 else self._by_descent

    def _by_step(self, model: nn.Module, request: Request) -> Outcome:
        """The influence step w_P += (C_P + λI)⁻¹ Σ (∇ℓ + λw) / n, without a pass over the retained samples."""
        picked = self._choose(model, request)
        block = self._block(model, picked)
        request.stages.begin("taking the step")
        direction = self._step_size * self._influence(model, block, request)
        start, limit = copy.deepcopy(trainable(model)), self._limit(request)
        before = self._retained_loss(request, self._probe_losses)
        share = _trusted(block.gather(start), direction) if self._guard is not None else 1.0
        for _ in range(MOST_TRIES):
            move(model, start, block.scatter(share * direction, start))
            losses = self._losses_of_probe(model)
            risen = self._retained_loss(request, losses)
            if risen <= limit:
                return Outcome(set(picked.numbers), picked.scores, share, losses)
            share *= _shorter(limit - before, risen - before)
        move(model, start, {})
        return self._nothing(picked, request, limit, "step")

    def _nothing(self, picked: Choice, request: Request, limit: float, what: str) -> Outcome:
        warn(
            f"no {what} of the {len(request.ids)} samples keeps the loss of retained samples below {limit:.3g}, "
            "so none was taken and nothing is forgotten; pass a larger guard=, or see whether the model was trained to "
            "the end.",
            NothingForgottenWarning,
        )
        return Outcome(set(picked.numbers), picked.scores, 0.0, self._probe_losses)

    def _by_descent(self, model: nn.Module, request: Request) -> Outcome:
        """Block Newton steps on the objective without the samples; the first block is L-FOCI's."""
        picked = self._choose(model, request)
        outcome = Outcome(set(picked.numbers), dict(picked.scores), 1.0)
        request.stages.begin("taking steps", self._steps)
        for step in range(self._steps):
            slopes = objective.slope(self.task, model, request.residual)
            if step > 0:
                picked = self._choose_steepest(slopes, len(picked.numbers))
            share = self._descend(model, self._block(model, picked), slopes, request)
            request.stages.advance()
            outcome = Outcome(
                outcome.chosen | set(picked.numbers), outcome.scores | picked.scores, min(outcome.share, share)
            )
        return outcome

    def _by_drift(self, model: nn.Module, request: Request) -> Outcome:
        """Drift, with half the force where the retained samples' loss rose too much."""
        how = self._refine
        assert how is not None
        picked = Choice(tuple(range(len(self.slices)))) if how.everywhere else self._choose(model, request)
        block, start = self.slices.block(picked.numbers), copy.deepcopy(trainable(model))
        limit = self._limit(request)
        step = {name: torch.zeros_like(weight) for name, weight in start.items()}
        if how.push:
            step |= block.scatter(self._influence(model, block, request), start)
        share, ids = 1.0, torch.tensor(request.ids)
        while True:
            request.stages.begin("drifting", how.epochs)
            lesson, denied = None, None
            if how.views is not None:
                lesson = Lesson(self.task, model, ids, how.views, request.seed)
            if how.denial:
                denied = Denial(self.task, ids, size=how.batch_size, seed=request.seed)
            drift(
                self.task,
                model,
                request.residual,
                step,
                how,
                block=block,
                seed=request.seed,
                force=share,
                lesson=lesson,
                denied=denied,
            )
            losses = self._losses_of_probe(model)
            if self._retained_loss(request, losses) <= limit:
                return Outcome(set(picked.numbers), picked.scores, share, losses)
            share /= 2
            move(model, start, {})
            if share < LEAST_FORCE:
                return self._nothing(picked, request, limit, "drift")

    def _as_in_the_paper(self, model: nn.Module, request: Request) -> Outcome:
        """One sample after the other, each with a block of its own."""
        assert self._trace is not None
        outcome = Outcome(set(), {}, 1.0)
        for done, sample in enumerate(request.ids):
            picked = self._choose(model, Request([sample], request.residual, request.seed, request.stages))
            block = self.slices.block(picked.numbers)
            request.stages.begin("taking the step")
            left = self._length - len(self._forgotten) - done
            start = copy.deepcopy(trainable(model))
            change = paper_change(self.task, model, block, sample, self._trace, left)
            move(model, start, block.scatter(change, start))
            outcome = Outcome(outcome.chosen | set(picked.numbers), outcome.scores | picked.scores, 1.0)
        return outcome

    def _choose(self, model: nn.Module, request: Request) -> Choice:
        if self._selection == "all":
            return Choice(tuple(range(len(self.slices))))
        if self._selection == "one":
            rng = np.random.default_rng(request.seed + len(self._forgotten))
            return Choice((int(rng.integers(len(self.slices))),))
        if self._selection == "largest-change":
            return choose_largest(self._change_of_slices(model, request), share=self._share)
        observations = self._observe(model, request)
        request.stages.begin("choosing slices", len(observations))
        if callable(self._selection):
            return Choice(tuple(sorted(set(self._selection(observations, self.slices)))))
        options: dict[str, Any] = {"seed": request.seed, "n_jobs": self._n_jobs}
        if self._selection in ("joint", "cheap"):
            return choose_jointly(
                observations, self.slices, method="cheap" if self._selection == "cheap" else "full", **options
            )
        picked = choose_per_layer(observations, self.slices, share=self._share, **options)
        if self._selection == "random":  # others for every request
            return choose_at_random(picked, self.slices, seed=request.seed + len(self._forgotten))
        return picked

    def _choose_steepest(self, slopes: dict[str, Tensor], count: int) -> Choice:
        """The slices that the objective is steepest in: every slice's turn comes, so that steps converge."""
        return choose_largest(self._slice_norms(slopes), share=min(1.0, count / len(self.slices)))

    def _observe(self, model: nn.Module, request: Request) -> list[Observation]:
        generator = torch.Generator().manual_seed(request.seed)
        watched = request.ids[: self._watched]
        request.stages.begin("watching the samples", len(watched))
        observations = []
        for sample in watched:
            observations.append(
                observe(
                    self.task,
                    model,
                    self.slices,
                    sample,
                    copies=self._copies,
                    perturbation=self._perturbation,
                    generator=generator,
                )
            )
            request.stages.advance()
        return observations

    def _block(self, model: nn.Module, picked: Choice) -> Block:
        whole_model = self._selection == "all" and self._kind != "cached"
        return everything(model) if whole_model else self.slices.block(picked.numbers)

    def _influence(self, model: nn.Module, block: Block, request: Request) -> Tensor:
        """The samples' Newton step (C_P + λI)⁻¹ Σ (∇ℓ + λw) / n."""
        descent = objective.descent_without(self.task, model, request.ids, len(request.residual))
        return self._direction(model, block, block.gather(descent), request)

    def _direction(self, model: nn.Module, block: Block, slope: Tensor, request: Request) -> Tensor:
        """(C + λI)⁻¹ slope on the block."""
        assert self._newton is not None
        return self._newton(model, block, slope, self._forgotten | set(request.ids))

    def _limit(self, request: Request) -> float:
        """The most that the mean loss of retained samples may become."""
        if self._guard is None:
            return float("inf")
        loss = self._retained_loss(request, self._probe_losses)
        return max(self._guard * loss, loss + self._guard_rise)

    def _losses_of_probe(self, model: nn.Module) -> Tensor:
        assert self._probe is not None
        return self._probe.losses(self.task, model)

    def _retained_loss(self, request: Request, losses: Tensor | None) -> float:
        assert self._probe is not None
        assert losses is not None
        return self._probe.mean(losses, self._forgotten | set(request.ids))

    def _descend(self, model: nn.Module, block: Block, slopes: dict[str, Tensor], request: Request) -> float:
        """A block Newton step on the objective without the samples, backtracking until it falls: it can't diverge."""
        start = copy.deepcopy(trainable(model))
        slope = block.gather(slopes)
        direction = -self._direction(model, block, slope, request)
        value = objective.value(self.task, model, request.residual)
        expected = float(slope @ direction)
        share = 1.0
        while share > 1e-6:
            move(model, start, block.scatter(share * direction, start))
            if objective.value(self.task, model, request.residual) <= value + 1e-4 * share * expected:
                return share
            share /= 2
        move(model, start, {})
        return 0.0

    def _change_of_slices(self, model: nn.Module, request: Request) -> Any:
        """Size of each slice's part of the full update."""
        block = self.slices.block(range(len(self.slices)))
        slope = block.gather(objective.descent_without(self.task, model, request.ids, len(request.residual)))
        return self._slice_norms(block.scatter(self._direction(model, block, slope, request), trainable(model)))

    def _slice_norms(self, tensors: dict[str, Tensor]) -> Any:
        sizes = []
        for layer in self.slices.layers:
            units = torch.arange(layer.units)
            squares = sum((rows.take(tensors[rows.parameter], units) ** 2).sum(1) for rows in layer.parts)
            sizes.append(torch.as_tensor(squares).sqrt())
        return torch.cat(sizes).double().cpu().numpy()

    def _certificate(
        self, model: nn.Module, residual: Tensor, sigma: float | None = None, delta: float | None = None
    ) -> Certificate:
        with evaluating(model):
            norm = objective.norm(objective.slope(self.task, model, residual))
        if sigma == 0:  # a quadratic loss, whose Newton step is exact
            sigma = delta = None
        return certify(norm, self.task.weight_decay, convex=self.task.is_convex, sigma=sigma, delta=delta)

    def _forget_loss(self, model: nn.Module, ids: list[int]) -> float:
        return float(objective.losses_on(self.task, model, ids).mean())

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if len(self.task.train_set) != self._length:
            raise InputError(
                f"train_set had {self._length} samples and now has {len(self.task.train_set)}; ids are positions in "
                "it, so it must stay as it is: make a new Unlearner for another one."
            )
        numbers: list[int] = positions(ids, self._length).tolist()
        for i in numbers:
            if i in self._forgotten:
                raise InputError(f"ids has {i}, which is forgotten already.")
        if len(numbers) + len(self._forgotten) >= self._length:
            raise InputError("ids would leave no sample of train_set; a model of nothing must be trained anew.")
        return numbers


def _trusted(weights: Tensor, step: Tensor) -> float:
    """The share of a step at which it is as long as the weights themselves: no step that is longer can be right."""
    length = float(step.norm())
    return min(1.0, float(weights.norm()) / length) if length > 0 else 1.0


def _shorter(allowed: float, risen: float) -> float:
    """By which factor to shorten a step whose rise is too large: a loss rises with the square of a small step."""
    return min(0.5, max(1 / 16, 0.9 * (allowed / risen) ** 0.5)) if math.isfinite(risen) else 1 / 16


def _require_trace(trace: GradientTrace | None, task: Task) -> None:
    if trace is None:
        raise InputError(
            'method="paper" needs trace=, the gradients of the last two epochs: train with fit(..., recorder=True) and '
            "pass its .trace, or use a GradientRecorder in a loop of your own."
        )
    shapes = {name: weight.shape for name, weight in trained_parameters(task.model).items()}
    if {name: tensor.shape for name, tensor in trace.gradients[1].items()} != shapes:
        raise InputError("trace is of another model: its parameters differ in name or shape from the task's.")
    if task.weight_decay == 0:
        raise InputError('method="paper" needs weight_decay > 0 in the task: its curvature is singular without.')
