"""Unlearner: ties it together. Sample -> slices -> curvature -> step -> new model, with a certificate."""

from __future__ import annotations

import copy
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from excise import objective
from excise.activations import Observation, Perturbation, observe
from excise.choosing import WAYS, Choice, Way, choose_at_random, choose_jointly, choose_largest, choose_per_layer
from excise.curvature import Kind, Solver, curvature, solve
from excise.drift import Drift, drift
from excise.errors import InputError, warn
from excise.forgotten import Forgotten
from excise.inputs import choice, whole
from excise.privacy import BudgetAccountant, Certificate, add_noise, analytic_sigma, certify, newton_distance
from excise.slices import Block, Slices, everything, find_slices, trainable
from excise.task import Task, evaluating, positions, trained_parameters

NEGLIGIBLE_RISE = 0.05  # a mean loss near 0 may rise by this without costing more than a point of accuracy
Selector = Callable[[Sequence[Observation], Slices], Iterable[int]]


class NotConvergedWarning(UserWarning):
    """The model is not near a minimum of its objective, so a Newton step says little about retraining."""


class Unlearner:
    """Makes a trained model forget samples, as if it had never seen them.

    Args:
        task: The model, its loss and its data.
        steps: How many block steps to take; more than one repeats on the objective without the samples, with the slices
            chosen anew and a line search.
        selection: How to choose the slices: ``"per-layer"`` (L-FOCI for each sample and layer, the most-voted share),
            ``"joint"`` (the paper's), ``"cheap"``, ``"one"``, ``"random"``, ``"largest-change"``, ``"all"``, or a
            function of the observations and the slices that gives slice numbers.
        share: The most slices of a layer to update, as a share.
        copies: Perturbed copies of each sample.
        watched: How many of the samples to perturb and watch, at the most.
        perturbation: How to perturb a sample; None for Gaussian noise on real-valued inputs.
        curvature: ``"ggn"``, ``"hessian"`` or ``"fisher"``.
        curvature_samples: How many retained samples to take it from.
        solver: ``"auto"``, ``"cg"``, ``"cholesky"``.
        iterations: Iterations of conjugate gradients.
        step_size: Multiple of the Newton step.
        refine: ``"drift"`` or a ``Drift`` adds a pass over the retained samples (see ``drift``), which forgets better
            where it is affordable; None for the step alone.
        guard: The most that the mean loss of retained samples may rise, as a factor (a rise by 0.05 always may); None
            for no guard.
        lipschitz: L, a bound on the norm of every sample's gradient, weight decay included; needed for noise.
        hessian_lipschitz: M, a Lipschitz constant of the loss's Hessian; needed for noise.
        budget: What all requests together may spend; one that does not fit raises ``RetrainRequired``.
        seed: For everything random but the noise.
        noise_seed: For the noise. None for a fresh secret one: whoever knows the seed can subtract the noise again.
        n_jobs: Threads of L-FOCI; None for all cores.
    """

    def __init__(
        self,
        task: Task,
        *,
        steps: int = 1,
        selection: Way | Selector = "per-layer",
        share: float = 0.3,
        copies: int = 128,
        watched: int = 16,
        perturbation: Perturbation | None = None,
        curvature: Kind = "ggn",
        curvature_samples: int = 1000,
        solver: Solver = "auto",
        iterations: int = 8,
        step_size: float = 1.5,
        refine: Literal["drift"] | Drift | None = None,
        guard: float | None = 1.5,
        lipschitz: float | None = None,
        hessian_lipschitz: float | None = None,
        budget: BudgetAccountant | None = None,
        seed: int = 0,
        noise_seed: int | None = None,
        n_jobs: int | None = None,
    ) -> None:
        if not callable(selection):
            choice(selection, WAYS, "selection")
        choice(curvature, ("ggn", "hessian", "fisher"), "curvature")
        choice(solver, ("auto", "cg", "cholesky"), "solver")
        counts = {"steps": steps, "copies": copies, "watched": watched, "curvature_samples": curvature_samples}
        for name, count in counts.items():
            whole(count, name)
        if isinstance(refine, str):
            choice(refine, ("drift",), "refine")
            refine = Drift()
        if not 0 < share <= 1:
            raise InputError(f"share must be above 0 and at most 1, not {share!r}.")
        self.task = task
        self.slices = find_slices(task.model)
        self._model = self._published = task.model
        self._length = len(task.train_set)
        self._forgotten: set[int] = set()
        self._steps, self._selection, self._share = steps, selection, share
        self._copies, self._watched, self._perturbation = copies, watched, perturbation
        self._kind, self._curvature_samples = curvature, curvature_samples
        self._solver, self._iterations = solver, iterations
        self._refine = refine
        self._lipschitz, self._hessian_lipschitz = lipschitz, hessian_lipschitz
        self.budget, self._noise_seed = budget, noise_seed
        self._step_size, self._guard, self._seed, self._n_jobs = step_size, guard, seed, n_jobs
        self._check_model()

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

    def forget(self, ids: Sequence[int], *, epsilon: float | None = None, delta: float | None = None) -> Forgotten:
        """A model that has forgotten the samples, in addition to those of earlier requests.

        With ``epsilon`` and ``delta`` noise is added to all weights, of the size that Sekhari et al.'s bound on a
        Newton step asks for. It guarantees what the certificate says, and no more. Later requests go on from the
        weights before the noise, which are kept here: the unlearner is as secret as the training set.
        """
        asked = self._checked(ids)
        sigma = self._sigma(len(self._forgotten) + len(asked), epsilon, delta)
        begin = time.perf_counter()
        residual = self.residual(also=asked)
        generator = torch.Generator().manual_seed(self._seed)
        probe = residual[torch.randperm(len(residual), generator=generator)[: self._curvature_samples]]
        with evaluating(self._model):
            model = copy.deepcopy(self._model)
            before = self._mean_losses(model, asked, probe)
            chosen: set[int] = set()
            scores: dict[int, float] = {}
            share = 1.0
            for step in range(self._steps):
                slopes = objective.slope(self.task, model, residual) if self._steps > 1 else {}
                if step == 0:
                    picked = self._choose(model, asked, probe, generator, self._seed)
                else:
                    picked = self._choose_steepest(slopes, len(picked.numbers))
                block = self._block(model, picked)
                if self._refine is not None:
                    share = self._drift_guarded(model, block, asked, residual, probe, before[1])
                elif self._steps == 1:
                    share = self._one_step(model, block, asked, probe, len(residual), before[1])
                else:
                    share = min(share, self._descend(model, block, slopes, residual, probe))
                chosen |= set(picked.numbers)
                scores |= picked.scores
            published = model
            certificate = None  # without noise it can wait until it is asked for
            if sigma is not None:
                certificate = self._certificate(model, residual, sigma, delta)  # of the weights before the noise
                published = copy.deepcopy(model)
                self._blur(published, sigma)
            after = self._mean_losses(published, asked, probe)
        if self.budget is not None and epsilon is not None and delta is not None:
            self.budget.spend(epsilon, delta, removed=len(asked))
        seconds = time.perf_counter() - begin
        start, end = trainable(self._model), trainable(model)
        changed = sum(int((start[name] != end[name]).sum()) for name in end)
        self._forgotten |= set(asked)
        self._model, self._published = model, published
        return Forgotten(
            model=published,
            ids=tuple(asked),
            slices=tuple(self.slices.name(number) for number in sorted(chosen)),
            scores={self.slices.name(number): score for number, score in scores.items()},
            seconds=seconds,
            step_share=share,
            parameters_changed=changed,
            forget_loss=(before[0], after[0]),
            retain_loss=(before[1], after[1]),
            _certify=lambda: certificate or self._certificate(model, residual),
        )

    def stability(self, ids: Sequence[int], seeds: Iterable[int]) -> dict[str, float]:
        """For each slice that is ever chosen, the share of the seeds for which it is; the model is not changed."""
        asked = self._checked(ids)
        counts: Counter[int] = Counter()
        runs = list(seeds)
        residual = self.residual(also=asked)
        with evaluating(self._model):
            for seed in runs:
                generator = torch.Generator().manual_seed(seed)
                probe = residual[torch.randperm(len(residual), generator=generator)[: self._curvature_samples]]
                counts.update(self._choose(self._model, asked, probe, generator, seed).numbers)
        return {self.slices.name(number): count / len(runs) for number, count in sorted(counts.items())}

    def _choose(self, model: nn.Module, ids: list[int], probe: Tensor, generator: torch.Generator, seed: int) -> Choice:
        if self._selection == "all":
            return Choice(tuple(range(len(self.slices))))
        if self._selection == "one":
            return Choice((int(np.random.default_rng(seed).integers(len(self.slices))),))
        if self._selection == "largest-change":
            return choose_largest(self._change_of_slices(model, ids, probe), share=self._share)
        observations = [self._observe(model, sample, generator) for sample in ids[: self._watched]]
        if callable(self._selection):
            return Choice(tuple(sorted(set(self._selection(observations, self.slices)))))
        if self._selection in ("joint", "cheap"):
            method: Literal["full", "cheap"] = "cheap" if self._selection == "cheap" else "full"
            return choose_jointly(observations, self.slices, seed=seed, method=method, n_jobs=self._n_jobs)
        picked = choose_per_layer(observations, self.slices, share=self._share, seed=seed, n_jobs=self._n_jobs)
        return choose_at_random(picked, self.slices, seed=seed) if self._selection == "random" else picked

    def _choose_steepest(self, slopes: dict[str, Tensor], count: int) -> Choice:
        """The slices that the objective is steepest in: every slice's turn comes, so that steps converge."""
        return choose_largest(self._slice_norms(slopes), share=min(1.0, count / len(self.slices)))

    def _observe(self, model: nn.Module, sample: int, generator: torch.Generator) -> Observation:
        return observe(
            self.task,
            model,
            self.slices,
            sample,
            copies=self._copies,
            perturbation=self._perturbation,
            generator=generator,
        )

    def _block(self, model: nn.Module, picked: Choice) -> Block:
        return everything(model) if self._selection == "all" else self.slices.block(picked.numbers)

    def _newton(self, model: nn.Module, block: Block, slope: Tensor, probe: Tensor) -> Tensor:
        """(C + λI)⁻¹ slope on the block."""
        operator = curvature(self.task, model, block, probe, kind=self._kind)
        found = solve(
            operator,
            slope,
            damping=self.task.weight_decay,
            method=self._solver,
            iterations=self._iterations,
        )
        return found.x

    def _one_step(
        self, model: nn.Module, block: Block, ids: list[int], probe: Tensor, left: int, retain_loss: float
    ) -> float:
        """The influence step w_P += (C_P + λI)⁻¹ Σ ∇ℓ / n, without a pass over the retained samples."""
        slope = block.gather(objective.gradient(self.task, model, ids)) / left
        direction = self._step_size * self._newton(model, block, slope, probe)
        return self._apply_guarded(model, block, direction, probe, retain_loss)

    def _drift_guarded(
        self, model: nn.Module, block: Block, ids: list[int], residual: Tensor, probe: Tensor, retain_loss: float
    ) -> float:
        """Drift, and go back part of the way where the retained samples' loss has risen too much."""
        how = cast(Drift, self._refine)
        drifted = copy.deepcopy(model)
        drift(self.task, drifted, ids, residual, how, block=block, seed=self._seed)
        all_of_it = everything(model)
        direction = all_of_it.gather(trainable(drifted)) - all_of_it.gather(trainable(model))
        return self._apply_guarded(model, all_of_it, direction, probe, retain_loss)

    def _apply_guarded(self, model: nn.Module, block: Block, direction: Tensor, probe: Tensor, loss: float) -> float:
        """Take the step, halved until the retained samples' loss rises no more than the guard allows."""
        start = copy.deepcopy(trainable(model))
        share = 1.0
        while True:
            _set(model, start, block.scatter(share * direction, start))
            risen = float(objective.losses_on(self.task, model, probe).mean())
            if self._guard is None or risen <= max(self._guard * loss, loss + NEGLIGIBLE_RISE) or share < 1e-3:
                return share
            share /= 2

    def _descend(
        self, model: nn.Module, block: Block, slopes: dict[str, Tensor], residual: Tensor, probe: Tensor
    ) -> float:
        """A block Newton step on the objective without the samples, backtracking until it falls: it can't diverge."""
        start = copy.deepcopy(trainable(model))
        slope = block.gather(slopes)
        direction = -self._newton(model, block, slope, probe)
        value = objective.value(self.task, model, residual)
        expected = float(slope @ direction)
        share = 1.0
        while share > 1e-6:
            _set(model, start, block.scatter(share * direction, start))
            if objective.value(self.task, model, residual) <= value + 1e-4 * share * expected:
                return share
            share /= 2
        _set(model, start, {})
        return 0.0

    def _change_of_slices(self, model: nn.Module, ids: list[int], probe: Tensor) -> Any:
        """Size of each slice's part of the full update."""
        block = everything(model)
        slope = block.gather(objective.gradient(self.task, model, ids))
        return self._slice_norms(block.scatter(self._newton(model, block, slope, probe), trainable(model)))

    def _slice_norms(self, tensors: dict[str, Tensor]) -> Any:
        sizes = []
        for layer in self.slices.layers:
            units = torch.arange(layer.units)
            squares = sum((rows.take(tensors[rows.parameter], units) ** 2).sum(1) for rows in layer.parts)
            sizes.append(torch.as_tensor(squares).sqrt())
        return torch.cat(sizes).double().cpu().numpy()

    def _sigma(self, removed: int, epsilon: float | None, delta: float | None) -> float | None:
        """Standard deviation of the noise, fixed before the data is looked at; None for none."""
        if epsilon is None and delta is None:
            return None
        if epsilon is None or delta is None:
            raise InputError(f"epsilon and delta must be given together, not {epsilon!r} and {delta!r}.")
        if self._lipschitz is None or self._hessian_lipschitz is None:
            raise InputError(
                "epsilon needs the constants that its guarantee rests on: pass lipschitz= (L) and hessian_lipschitz= "
                "(M) to Unlearner."
            )
        if self.task.weight_decay == 0:
            raise InputError(
                "epsilon needs weight_decay > 0 in the task: without it the bound on the step is infinite."
            )
        if self.budget is not None:
            copy.deepcopy(self.budget).spend(epsilon, delta)  # raises if it does not fit, before anything is done
        distance = newton_distance(
            removed=removed,
            samples=self._length,
            lipschitz=self._lipschitz,
            hessian_lipschitz=self._hessian_lipschitz,
            strong_convexity=self.task.weight_decay,
        )
        return analytic_sigma(distance, epsilon, delta)

    def _blur(self, model: nn.Module, sigma: float) -> None:
        if sigma == 0:
            return
        seed = secrets.randbits(63) if self._noise_seed is None else self._noise_seed
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in trained_parameters(model).values():
                parameter.copy_(add_noise(parameter, sigma, generator))

    def _certificate(
        self, model: nn.Module, residual: Tensor, sigma: float | None = None, delta: float | None = None
    ) -> Certificate:
        with evaluating(model):
            norm = objective.norm(objective.slope(self.task, model, residual))
        if sigma == 0:  # a quadratic loss, whose Newton step is exact
            sigma = delta = None
        return certify(norm, self.task.weight_decay, convex=self.task.is_convex, sigma=sigma, delta=delta)

    def _mean_losses(self, model: nn.Module, ids: list[int], probe: Tensor) -> tuple[float, float]:
        return float(objective.losses_on(self.task, model, ids).mean()), float(
            objective.losses_on(self.task, model, probe).mean()
        )

    def _check_model(self) -> None:
        """A model whose loss is not finite, or that is far from a minimum, is found before the first request."""
        ids = torch.arange(self._length)[: self._curvature_samples]
        with evaluating(self._model):
            loss = objective.losses_on(self.task, self._model, ids).mean()
            if not torch.isfinite(loss):
                raise InputError(f"the model's loss on its training set is {float(loss)}; check model, loss and data.")
            steepness = objective.norm(objective.slope(self.task, self._model, ids))
        weights = objective.norm(trainable(self._model))
        if steepness * weights > 0.5 * max(float(loss), 1e-3) and steepness > 0.1:
            warn(
                f"the gradient of the objective is {steepness:.3g}, so the model is not near a minimum (was it trained "
                f"to the end, with weight_decay={self.task.weight_decay}?); forgetting will be less exact.",
                NotConvergedWarning,
            )

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


def _set(model: nn.Module, start: dict[str, Tensor], change: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in start:
                parameter.copy_(start[name] + change[name] if name in change else start[name])
