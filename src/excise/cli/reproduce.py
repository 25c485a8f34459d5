"""``excise reproduce``: the tables and figures of the paper, measured anew."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from excise._support.visible import visible
from excise.cli.options import FILE, FilePath, require_writable, seed_option
from excise.errors import ExciseError, InputError


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listed", is_flag=True, help="Say which experiments there are.")
@click.option("--all", "everything", is_flag=True, help="Run all of them, one after another.")
@click.option("--quick", is_flag=True, help="Small settings: under two minutes each.")
@click.option("--paper-scale", is_flag=True, help="The paper's own settings, whatever they cost.")
@click.option(
    "--data-dir",
    type=FilePath(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the data sets lie.  [default: $EXCISE_DATA if it is set, else ~/.cache/excise/data]",
)
@click.option(
    "--out-dir",
    type=FilePath(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where results go.  [default: results, with --quick results/quick]",
)
@seed_option
@click.option("--fresh", is_flag=True, help="Throw away what an earlier run left, rather than go on with it.")
@click.option("--page", type=FILE, metavar="FILE", help="Gather all results of --out-dir in one page (.md).")
def reproduce(
    name: str | None,
    listed: bool,
    everything: bool,
    quick: bool,
    paper_scale: bool,
    data_dir: Path | None,
    out_dir: Path | None,
    seed: int,
    fresh: bool,
    page: Path | None,
) -> None:
    """Measure a table or figure of the paper anew, on real data.

    A run that was stopped goes on where it stopped when the command is given again. It writes result.json, plot.png
    and README.md: what the paper says, what was measured, and where and why they differ.

    \b
    Examples:
      excise reproduce --list
      excise reproduce bullseye --quick
      excise reproduce --all
      excise reproduce --page docs/results.md
    """
    from excise import reproduce as experiments

    if quick and paper_scale:
        raise InputError("--quick and --paper-scale are two sizes of a run; give one of them.")
    if sum([name is not None, listed, everything, page is not None]) != 1:
        raise InputError("give one of: the NAME of an experiment, --list, --all, --page FILE.")
    results = out_dir or (Path("results/quick") if quick else Path("results"))
    if listed:
        for one in experiments.EXPERIMENTS.values():
            click.echo(one)
    elif page is not None:
        _write_page(page, results)
    else:
        from excise.datasets.files import default_folder

        names = list(experiments.EXPERIMENTS) if name is None else [experiments.find(name).name]
        scale = "quick" if quick else "paper" if paper_scale else "full"
        _run(names, scale, results, data_dir or default_folder(), seed=seed, fresh=fresh)


def _write_page(page: Path, results: Path) -> None:
    """Gather the results of all experiments in one page."""
    from excise.reproduce import EXPERIMENTS
    from excise.reproduce.framework.pages import gather
    from excise.reproduce.framework.run import write_whole

    require_writable(page, "--page", (".md",))
    pictures = Path(os.path.relpath(results, page.parent)).as_posix()
    write_whole(page, gather(results, list(EXPERIMENTS), pictures).encode())
    click.echo(f"wrote {page}")


def _run(names: Sequence[str], scale: str, results: Path, data_dir: Path, *, seed: int, fresh: bool) -> None:
    """Run experiments one after another; one that fails does not keep the others from being run."""
    from excise import reproduce as experiments

    failed: list[str] = []
    if scale == "quick":
        click.echo("A try with small settings: its verdicts say nothing about the paper.")
    for name in names:
        experiment = experiments.find(name)
        click.echo(f"{name}: {experiment.title} ({experiment.where}), on {experiment.data}")
        for reduction in experiment.reductions(experiment.at(scale)):
            click.echo(f"  {reduction}")
        try:
            result = experiments.reproduce(
                name,
                out_dir=results,
                data_dir=data_dir,
                scale=scale,
                seed=seed,
                fresh=fresh,
                say=lambda line: click.echo(f"  {line}", err=True),
                bar=sys.stderr.isatty(),
            )
        except KeyboardInterrupt:
            click.echo("\nstopped; complete steps are kept, and the same command goes on from there", err=True)
            sys.exit(130)
        except ExciseError as error:
            if len(names) == 1:
                raise
            click.echo(f"excise: {name}: {visible(str(error))}", err=True)
            failed.append(name)
            continue
        _say_verdicts(result)
        click.echo(f"  wrote {results / name}/README.md, plot.png, result.json")
    if failed:
        raise InputError(f"not all experiments could be run: {', '.join(failed)}; the reasons are above.")


def _say_verdicts(result: Mapping[str, Any]) -> None:
    """Print what the paper claims and what was measured."""
    for claim in result["claims"]:
        click.echo(f"  {claim['verdict']}: {claim['paper']}\n    measured: {claim['measured']}")
        if claim["why"]:
            click.echo(f"    {claim['why']}")
