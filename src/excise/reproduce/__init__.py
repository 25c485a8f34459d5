"""Every table and figure of the paper by one command each: ``excise reproduce NAME``."""

from __future__ import annotations

import io
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from excise.reproduce.framework.registry import EXPERIMENTS, find

__all__ = ["EXPERIMENTS", "find", "reproduce"]


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
    from excise.evidence.text import plain
    from excise.reproduce.framework.pages import page
    from excise.reproduce.framework.plots import new_figure
    from excise.reproduce.framework.run import Run, throw_away, write_whole
    from excise.unlearning.convergence import NotConvergedWarning

    experiment = find(name)
    settings = experiment.at(scale)
    figure = new_figure(experiment.size)  # what is missing is said before the work
    folder = out_dir / name
    if fresh:
        throw_away(folder)
    run = Run(folder, name, settings, data_dir=data_dir, seed=seed, say=say, bar=bar)
    with warnings.catch_warnings():  # what the paper's step does to a model is in the figures
        warnings.simplefilter("ignore", NotConvergedWarning)
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
