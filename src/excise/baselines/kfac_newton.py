"""K-FAC Newton: the step of all weights again, with a Kronecker-factored curvature that is inverted exactly."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from excise._support.checks import choice, positive, whole
from excise.baselines.registry import baseline
from excise.baselines.start import Start, begin
from excise.curvature import kfac
from excise.curvature.operators import Outputs
from excise.curvature.strategies import LEAST_DAMPING
from excise.errors import InputError, MissingExtraError, NotYetSupportedError
from excise.slices.slices import find_slices
from excise.task.ids import Ids
from excise.task.objective import removal_gradient
from excise.task.parameters import trainable, trained_parameters
from excise.task.task import Batch, Task

LOSSES = (nn.CrossEntropyLoss, nn.MSELoss, nn.BCEWithLogitsLoss)  # that curvlinops knows
INSTALL = "pip install --no-deps curvlinops-for-pytorch backpack-for-pytorch unfoldNd einconv linear_operator jaxtyping"
ALSO = "pip install einops opt-einsum tqdm wadler-lindig"


@baseline(
    "kfac-newton",
    reference="Mehta et al. 2022, appendix D",
    grid=[{"size": 1.0}, {"size": 0.5}, {"size": 1.0, "damping": 0.01}],
)
def kfac_newton(
    task: Task,
    model: nn.Module,
    forget: Ids,
    *,
    seed: int,
    forgotten: Ids = (),
    damping: float | None = None,
    size: float = 1.0,
    samples: int | None = 1000,
    rows: int = 5000,
    rank: int = 1024,
    backend: Literal["excise", "curvlinops"] = "excise",
) -> nn.Module:
    """One step w + (K + damping I)⁻¹ Σ (∇ℓ + λw) / n of all weights, with K the K-FAC of the n retained samples.

    The comparison in appendix D of Mehta, Pal, Singh and Ravi (2022), "Deep Unlearning via Randomized Conditionally
    Independent Hessians", with the curvature of Martens and Grosse (2015), "Optimizing Neural Networks with
    Kronecker-factored Approximate Curvature": the blocks of the layers, each a Kronecker product B ⊗ A. It is the
    Gauss-Newton matrix that is approximated; a bias is one more column of its layer. Layers without Kronecker factors,
    such as attention projections, have the diagonal of that matrix, and what belongs to no layer, as in normalisation,
    stays.

    Args:
        seed: Decides which samples the factors are taken from.
        damping: Added to the diagonal; None for the weight decay (which belongs there), but at least 1e-4.
        size: Multiple of the step.
        samples: How many retained samples to take the factors from; None for all.
        rows: With ``"excise"``: how many pairs of sample and class B is taken from, the weightiest likeliest.
        rank: With ``"excise"``: how many eigenvectors of A are kept; the rest shares one eigenvalue.
        backend: ``"excise"``, or ``"curvlinops"`` for the factors and the inverse of that package, which must be
            installed, knows linear layers and 2-d convolutions, and takes all classes of all samples.

    >>> data = torch.utils.data.TensorDataset(torch.ones(3, 1), torch.tensor([1.0, 2.0, 3.0]))
    >>> task = Task(nn.Linear(1, 1, bias=False), lambda a, b: (a[:, 0] - b) ** 2 / 2, data, weight_decay=0.0)
    >>> _ = nn.init.constant_(task.model.weight, 2.0)
    >>> round(kfac_newton(task, task.model, [2], seed=0, damping=1.0).weight.item(), 4)  # 2 + (1 + 1)⁻¹ (2 - 3) / 2
    1.75
    """
    own = choice(backend, ("excise", "curvlinops"), "backend") == "excise"
    damping = max(task.weight_decay, LEAST_DAMPING) if damping is None else damping
    for name, value in {"damping": damping, "size": size}.items():
        positive(value, name)
    start = begin(task, model, forget, seed, forgotten=forgotten)
    ids = start.some_of(start.retain, samples, "samples")
    gradient = removal_gradient(start.task, start.model, start.forget, len(start.retain))
    if own:
        step = _by_excise(start, ids, gradient, damping, whole(rows, "rows"), whole(rank, "rank"))
    else:
        step = _by_curvlinops(start, ids, gradient, damping)
    with torch.no_grad():
        for name, weight in trained_parameters(start.model).items():
            if name in step:
                weight.add_(step[name], alpha=size)
    return start.model


def _by_excise(
    start: Start, ids: Tensor, gradient: dict[str, Tensor], damping: float, rows: int, rank: int
) -> dict[str, Tensor]:
    slices = find_slices(start.model)
    if not kfac.can_cache(start.task, start.model, slices):
        raise NotYetSupportedError(
            "kfac_newton needs outputs of shape (n, outputs), one row a sample; use full_newton for other models."
        )
    kept = kfac.cache(start.task, start.model, slices, ids, rank=rank, rows=rows, exact=0, seed=start.seed)
    block = slices.block(range(len(slices)))
    return block.scatter(kept.solve(block, block.gather(gradient), damping=damping), trainable(start.model))


def _by_curvlinops(start: Start, ids: Tensor, gradient: dict[str, Tensor], damping: float) -> dict[str, Tensor]:
    try:
        curvlinops: Any = import_module("curvlinops")
    except ImportError:
        raise MissingExtraError(
            f'backend="curvlinops" needs curvlinops, without the torchvision that it asks for: {ALSO} && {INSTALL}'
        ) from None
    loss = start.task.loss
    weighted = any(getattr(loss, name, None) is not None for name in ("weight", "pos_weight"))
    if not isinstance(loss, LOSSES) or weighted:  # whose weights curvlinops would pass over in silence
        raise InputError(
            f"task.loss must be one that curvlinops knows ({', '.join(known.__name__ for known in LOSSES)}, without "
            f'weights), not {loss!r}{" with weights" if weighted else ""}; or use backend="excise".'
        )
    mean = copy.copy(loss)
    mean.reduction = "mean"
    batches = list(start.task.batches(ids, start.task.batch_size_within_memory(256)))
    with torch.no_grad():
        data = [({"batch": batch}, start.task.outputs(start.model, batch)[1]) for batch in batches]
    counts = {id(inputs): len(targets) for inputs, targets in data}
    slices = find_slices(start.model)
    names = [rows.parameter for layer in slices.layers for rows in layer.parts]
    weights = trained_parameters(start.model)
    try:
        curvature = curvlinops.KFACLinearOperator(
            _Called(start.task, start.model),
            mean,
            [weights[name] for name in names],
            data,
            check_deterministic=False,
            fisher_type="type-2",  # all classes, with their probabilities: nothing is drawn
            separate_weight_and_bias=False,
            num_data=len(ids),
            batch_size_fn=lambda inputs: counts[id(inputs)],
        )
        inverse = curvlinops.KFACInverseLinearOperator(curvature, damping=damping, use_exact_damping=True)
        steps = inverse @ [gradient[name] for name in names]
    except NotImplementedError as error:
        raise NotYetSupportedError(
            f'backend="curvlinops" knows linear layers and 2-d convolutions, and plain losses ({error}); use '
            'backend="excise" or full_newton.'
        ) from None
    return {name: step.detach() for name, step in zip(names, steps, strict=True)}


class _Called(Outputs):
    """The model as curvlinops calls it: with a mapping, in which the batch of any task fits."""

    def forward(self, batch: Batch) -> Tensor:
        return super().forward(batch["batch"])
