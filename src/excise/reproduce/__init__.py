"""Every table and figure of the paper by one command each: ``excise reproduce NAME``."""

from __future__ import annotations

import difflib
import io
import json
import warnings
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from excise.errors import InputError

EXPERIMENTS = {
    "celeba-speed": "celeba_speed",
    "bullseye": "bullseye",
    "spurious": "spurious",
    "sensitivity": "sensitivity_maps",
    "mnist-logistic": "mnist_removals",
    "mnist-2nn": "mnist_removals",
    "retrain": "retrain",
    "batchnorm": "batchnorm_dips",
    "cifar-models": "cifar_models",
    "ledgar": "ledgar",
    "faces": "faces",
    "reid": "reid",
    "kfac": "kfac_comparison",
    "full-hessian": "full_hessian",
    "iterations": "iterations",
}
"""The experiments in the paper's order, and the module that has each."""


def find(name: str) -> Any:
    """The experiment of a name; for an unknown one, the error suggests the nearest.

    >>> find("bulseye")
    Traceback (most recent call last):
    excise.errors.InputError: there is no experiment 'bulseye'; did you mean 'bullseye'? See excise reproduce --list.
    """
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? See" if near else "for all of them, see"
        raise InputError(f"there is no experiment {name!r}; {hint} excise reproduce --list.")
    module = import_module(f"excise.reproduce.{EXPERIMENTS[name]}")
    return next(one for one in vars(module).values() if getattr(one, "name", None) == name)


def reproduce(
    name: str,
    *,
    out_dir: Path,
    data_dir: Path,
    scale: str = "full",
    seed: int = 0,
    fresh: bool = False,
    say: Any = None,
    bar: bool = False,
) -> dict[str, Any]:
    """Run an experiment, or go on with it, and write ``result.json``, ``plot.png`` and ``README.md`` into its folder.

    Args:
        name: Of the experiment.
        out_dir: Its folder is made in this one.
        data_dir: Where the data sets lie.
        scale: ``"full"``, ``"quick"`` or ``"paper"``, for the settings.
        seed: For everything random.
        fresh: Whether to throw away what the folder holds.
        say: What to do with a line about progress; None for nothing.
        bar: Whether to show a bar inside long steps.
    """
    import torch

    import excise
    from excise.audit_table import plain
    from excise.convergence import NotConvergedWarning
    from excise.reproduce.pages import page
    from excise.reproduce.plots import new_figure
    from excise.reproduce.run import Run, throw_away, write_whole
    from excise.unlearn import NothingForgottenWarning

    experiment = find(name)
    settings = experiment.at(scale)
    figure = new_figure(experiment.size)  # what is missing is said before the work
    folder = out_dir / name
    if fresh:
        throw_away(folder)
    run = Run(folder, name, settings, data_dir=data_dir, seed=seed, say=say, bar=bar)
    with warnings.catch_warnings():  # what the paper's step does to a model is in the figures
        warnings.simplefilter("ignore", NotConvergedWarning)
        warnings.simplefilter("ignore", NothingForgottenWarning)
        measured = experiment.measure(run)
    result = plain(
        {
            "experiment": name,
            "title": experiment.title,
            "where": experiment.where,
            "data": experiment.data,
            "command": _command(name, scale, seed),
            "excise": excise.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "seed": seed,
            "seconds": run.seconds,
            "settings": asdict(settings),
            "reductions": experiment.reductions(settings),
            "notes": experiment.notes,
            "claims": [asdict(claim) for claim in experiment.judge(measured)],
            "measured": measured,
        }
    )
    experiment.draw(measured, figure)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_whole(folder / "result.json", (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    write_whole(folder / "plot.png", picture.getvalue())
    write_whole(folder / "README.md", page(result).encode())
    return dict(result)


def _command(name: str, scale: str, seed: int) -> str:
    options = {"quick": " --quick", "paper": " --paper-scale"}.get(scale, "") + (f" --seed {seed}" if seed else "")
    return f"excise reproduce {name}{options}"
