"""The command line: parse, call, print."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

import excise
from excise.errors import ExciseError, InputError

if TYPE_CHECKING:  # what loads torch is imported where it is needed, so that --help is quick
    from torch import nn

    from excise.auditing import Audit
    from excise.forgotten import Forgotten
    from excise.task import Task


MAPPED = 4  # samples whose sensitivity a report shows
task_option = click.option(
    "--task", "address", required=True, metavar="MODULE:FACTORY", help="A function that makes the excise.Task."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(excise.__version__, prog_name="excise")
def cli() -> None:
    """Delete training samples from a trained model, and find what a column of a table depends on."""


@cli.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--target", required=True, metavar="COLUMN", help="The column to explain; it must be numeric.")
@click.option("--max-features", type=click.IntRange(min=1), metavar="N", help="Choose at most N columns.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For ties between neighbours.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Threads to use.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw a picture too (.png, .svg, .pdf).")
def blanket(
    table: Path,
    target: str,
    max_features: int | None,
    seed: int,
    jobs: int | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Find the Markov blanket of a column of TABLE, a CSV or Parquet file.

    The blanket is a small set of columns that tells all there is to know about the target: given them, the others add
    nothing. It is found by FOCI, which assumes no model and needs no tuning; T is the share of the target's variation
    (of what is still unknown, step by step) that a column explains, from 0 to 1.

    Text columns become 0/1 columns, one a level; rows with gaps are left out. Both are said.

    \b
    Examples:
      excise blanket patients.csv --target progression
      excise blanket patients.parquet --target progression --plot blanket.png
      excise blanket patients.csv --target progression --json | jq '.blanket[].column'
    """
    from excise.blanket import find_blanket
    from excise.tables import prepare, read

    prepared = prepare(read(table), target)
    if max_features is not None:
        max_features = min(max_features, prepared.columns.shape[1])
    found = find_blanket(
        prepared, max_features=max_features, seed=seed, n_jobs=jobs, progress=sys.stderr.isatty() and not as_json
    )
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        found.show(Console())
    if plot is not None:
        found.save_plot(plot)


@cli.command()
@task_option
@click.option("--ids", metavar="3,5,9", help="Samples to forget: positions in the training set.")
@click.option("--ids-file", type=click.Path(path_type=Path), metavar="FILE", help="The same, one a line.")
@click.option(
    "--forget", "spec", metavar="SPEC", help="The same by a rule: class:3, class:3:100, hardest:20, random:1%."
)
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="FILE", help="Weights to start from (.safetensors, .pt)."
)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Where to write the weights."
)
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True, help="Newton steps.")
@click.option("--drift", is_flag=True, help="Add a pass over the retained samples: slower, forgets better.")
@click.option(
    "--refine",
    type=click.Choice(["drift", "thorough", "class", "images", "mirrored-images"]),
    help="Such a pass: one, three, for a whole class or person, for images known by heart (mirrored too: not digits).",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the record of what was done (.json), or audit it and write a page for people (.html).",
)
@click.option(
    "--retrainings", type=click.IntRange(min=0), default=0, show_default=True, help="Models to retrain for the audit."
)
@click.option("--show-samples", is_flag=True, help="Let the page show the forgotten samples, not only their hashes.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
def forget(
    address: str,
    ids: str | None,
    ids_file: Path | None,
    spec: str | None,
    model: Path | None,
    out: Path,
    steps: int,
    drift: bool,
    refine: str | None,
    report: Path | None,
    retrainings: int,
    show_samples: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Make a trained model forget samples, and write its new weights.

    \b
    Examples:
      excise forget --task my_project:task --ids 17,4242 --model in.safetensors --out out.safetensors
      excise forget --task my_project:task --ids 17,4242 --out out.safetensors --report report.html --retrainings 3
    """
    from excise.drift import Drift
    from excise.requests import parse_request
    from excise.task import load_task
    from excise.unlearn import Unlearner
    from excise.weights import TORCH, load_weights, save_weights

    if sum(given is not None for given in (ids, ids_file, spec)) != 1:
        raise InputError("name the samples by one of --ids, --ids-file and --forget.")
    _require_file(out, "--out", (".safetensors", *sorted(TORCH)))
    page = _require_file(report, "--report", (".json", ".html")) == ".html"
    if not page and (retrainings or show_samples):
        raise InputError("--retrainings and --show-samples are for the page that --report FILE.html writes.")
    chosen = [] if spec is not None else _ids(ids, ids_file)
    task = load_task(address)
    if page and task.test_set is None:
        raise InputError("--report FILE.html audits the model, which needs a test_set in the task.")
    if model is not None:
        load_weights(task.model, model)
    if spec is not None:
        chosen = list(parse_request(spec, task, seed=seed).ids)
    passes = {
        "drift": Drift(),
        "thorough": Drift.thorough(),
        "class": Drift.of_class(),
        "images": Drift.of_images(),
        "mirrored-images": Drift.of_images(flip=True),
    }
    done = Unlearner(
        task,
        steps=steps,
        refine=passes[refine] if refine else Drift() if drift else None,
        seed=seed,
        progress=sys.stderr.isatty() and not as_json,
    ).forget(chosen)
    save_weights(done.model, out)
    record = (
        json.dumps({**done.as_dict(), "seed": seed, "excise": excise.__version__}, indent=2)
        if report or as_json
        else ""
    )
    if page:
        _prove(task, task.model, done, chosen, retrainings, report, show_samples=show_samples, seed=seed, quiet=as_json)
    elif report is not None:
        report.write_text(record + "\n")
    if as_json:
        click.echo(record)
    else:
        click.echo(done.summary())
        for file in (out, report):
            if file is not None:
                click.echo(f"wrote {file}")


@cli.command()
@task_option
@click.option(
    "--forget",
    "spec",
    required=True,
    metavar="SPEC",
    help="What was forgotten: ids:3,5,9, ids:FILE or class:3.",
)
@click.option(
    "--original", type=click.Path(path_type=Path), metavar="FILE", help="Weights before.  [default: the task's model]"
)
@click.option("--unlearned", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Weights after.")
@click.option(
    "--retrainings",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Models to retrain for it.",
)
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write a page for people (.html).")
@click.option("--show-samples", is_flag=True, help="Let the page show the forgotten samples, not only their hashes.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
def audit(
    address: str,
    spec: str,
    original: Path | None,
    unlearned: Path,
    retrainings: int,
    report: Path | None,
    show_samples: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Measure how well a model forgot samples, however that was done.

    \b
    Example:
      excise audit --task my_project:task --forget ids:17,4242 --unlearned out.safetensors --retrainings 3
    """
    import copy

    from excise.requests import parse_request
    from excise.task import load_task
    from excise.weights import load_weights

    _require_file(report, "--report", (".html",))
    task = load_task(address)
    if original is not None:
        load_weights(task.model, original)
    after = copy.deepcopy(task.model)
    load_weights(after, unlearned)
    chosen = parse_request(spec, task, seed=seed).ids
    found = _prove(
        task, task.model, after, chosen, retrainings, report, show_samples=show_samples, seed=seed, quiet=as_json
    )
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
        return
    from excise.audit_table import show

    show(found, Console())
    if report is not None:
        click.echo(f"wrote {report}")


def _prove(
    task: Task,
    before: nn.Module,
    after: nn.Module | Forgotten,
    ids: Sequence[int],
    retrainings: int,
    report: Path | None,
    *,
    show_samples: bool,
    seed: int,
    quiet: bool,
) -> Audit:
    """Audit, and write the page if asked."""
    from excise.auditing import audit as audit_model
    from excise.report import sample_views, sensitivity_maps, write_report

    found = audit_model(
        task,
        before,
        after,
        ids,
        retrained=retrainings or None,
        seed=seed,
        progress=sys.stderr.isatty() and not quiet,
    )
    if report is not None:
        samples = maps = None
        if show_samples:
            samples = sample_views(task, ids)
            model: Any = getattr(after, "model", after)
            with contextlib.suppress(InputError):  # what is no picture has no map
                maps = sensitivity_maps(task, before, model, ids[:MAPPED], seed=seed)
        write_report(found, report, samples=samples, maps=maps, settings={"seed": seed})
    return found


def _require_file(file: Path | None, option: str, endings: tuple[str, ...]) -> str:
    """Refuse a file of another kind, or in a folder that is not there, before any work is done; gives its ending."""
    if file is None:
        return ""
    if file.suffix.lower() not in endings:
        raise InputError(f"{option} {file.name}: the name must end in {' or '.join(endings)}.")
    if not file.parent.is_dir():
        raise InputError(f"{option} {file}: there is no folder {file.parent}.")
    return file.suffix.lower()


@cli.command()
@task_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
def slices(address: str, as_json: bool) -> None:
    """List the layers of a model whose slices can be updated."""
    from excise.slices import find_slices, trainable
    from excise.task import load_task

    model = load_task(address).model
    found, parameters = find_slices(model), trainable(model)
    rows = [
        {
            "layer": layer.name,
            "kind": layer.kind,
            "slices": layer.units,
            "parameters": sum(part.width(parameters[part.parameter], layer.units) for part in layer.parts)
            * layer.units,
        }
        for layer in found.layers
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    width = max(len(str(row["layer"])) for row in rows)
    for row in rows:
        click.echo(
            f"{row['layer']:<{width}}  {row['slices']:>7,} slices  {row['parameters']:>12,} parameters  {row['kind']}"
        )
    covered = sum(int(str(row["parameters"])) for row in rows)
    total = sum(parameter.numel() for parameter in parameters.values())
    click.echo(f"{len(found):,} slices, {covered:,} of {total:,} trainable parameters")


def _ids(listed: str | None, file: Path | None) -> list[int]:
    if file is not None:
        if not file.is_file():
            raise InputError(f"{file}: no such file.")
        words = file.read_text().replace(",", " ").split()
    else:
        words = [word for word in (listed or "").split(",") if word.strip()]
    try:
        return [int(word) for word in words]
    except ValueError:
        wrong = next(word for word in words if not word.strip().lstrip("-").isdigit())
        raise InputError(f"ids must be whole numbers, not {wrong!r}.") from None


@cli.command()
@task_option
@click.option(
    "--forget",
    "spec",
    required=True,
    metavar="SPEC",
    help="random:1%, class:3, class:3:100, hardest:20, ids:3,5,9 or ids:FILE.",
)
@click.option("--methods", metavar="A,B,...", help="Which to compare.  [default: all]")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Repetitions.")
@click.option("--retrainings", type=click.IntRange(min=2), default=3, show_default=True, help="Of every request.")
@click.option("--no-tuning", is_flag=True, help="Take every method's default settings.")
@click.option("--cache", type=click.Path(path_type=Path), metavar="DIR", help="Where retrained models are kept.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write everything as JSON.")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw gap against cost (.png, .svg, .pdf)."
)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def compare(
    address: str,
    spec: str,
    methods: str | None,
    seeds: int,
    retrainings: int,
    no_tuning: bool,
    cache: Path | None,
    out: Path | None,
    plot: Path | None,
    markdown: bool,
) -> None:
    """Compare methods of unlearning with retraining.

    All of them run on the same request, tuned alike on another one.

    \b
    Example:
      excise compare --task my_project:task --forget random:1% --out compare.json --plot compare.png
    """
    from excise import compare_table
    from excise.audit_table import write_json
    from excise.comparing import compare as compare_methods
    from excise.retraining import KEPT_IN
    from excise.task import load_task

    _require_file(out, "--out", (".json",))
    if _require_file(plot, "--plot", (".png", ".svg", ".pdf")):
        compare_table.new_figure()  # what is missing is said before the work
    found = compare_methods(
        load_task(address),
        spec,
        methods=None if methods is None else [word.strip() for word in methods.split(",") if word.strip()],
        seeds=seeds,
        retrainings=retrainings,
        tune=not no_tuning,
        cache=cache or KEPT_IN,
        progress=sys.stderr.isatty(),
    )
    if markdown:
        click.echo(compare_table.markdown(found))
    else:
        compare_table.show(found, Console())
    if out is not None:
        write_json(found.as_dict(), out)
    if plot is not None:
        compare_table.save_plot(found, plot)
    for file in (out, plot):
        if file is not None:
            click.echo(f"wrote {file}", err=markdown)


@cli.command()
@click.option(
    "--out-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    metavar="DIR",
    help="Where to write excise-report.html and .json.  [default: here]",
)
def demo(out_dir: Path) -> None:
    """Make a network forget digits with wrong labels, and prove it against retrained ones; needs no download."""
    from excise.demo import run

    run(Console(), out_dir)


@cli.command()
@click.argument("name", required=False)
@click.option("--list", "listed", is_flag=True, help="Say which experiments there are.")
@click.option("--all", "everything", is_flag=True, help="Run all of them, one after another.")
@click.option("--quick", is_flag=True, help="Small settings: under two minutes each.")
@click.option("--paper-scale", is_flag=True, help="The paper's own settings, whatever they cost.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the data sets lie.  [default: ../shared/data where it is, else ~/.cache/excise/data]",
)
@click.option(
    "--out-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where results go.  [default: results, with --quick results/quick]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--fresh", is_flag=True, help="Throw away what an earlier run left, rather than go on with it.")
@click.option(
    "--page", type=click.Path(path_type=Path), metavar="FILE", help="Gather all results of --out-dir in one page (.md)."
)
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
    from excise.datasets.files import default_folder
    from excise.reproduce.pages import gather
    from excise.reproduce.run import write_whole

    if quick and paper_scale:
        raise InputError("--quick and --paper-scale are two sizes of a run; give one of them.")
    if sum([name is not None, listed, everything, page is not None]) != 1:
        raise InputError("give one of: the NAME of an experiment, --list, --all, --page FILE.")
    results = out_dir or (Path("results/quick") if quick else Path("results"))
    if listed:
        for one in map(experiments.find, experiments.EXPERIMENTS):
            click.echo(f"{one.name:<16}{one.where}: {one.title}")
    elif page is not None:
        _require_file(page, "--page", (".md",))
        pictures = Path(os.path.relpath(results, page.parent)).as_posix()
        write_whole(page, gather(results, list(experiments.EXPERIMENTS), pictures).encode())
        click.echo(f"wrote {page}")
    else:
        names = list(experiments.EXPERIMENTS) if name is None else [experiments.find(name).name]
        scale = "quick" if quick else "paper" if paper_scale else "full"
        _reproduce(names, scale, results, data_dir or default_folder(), seed=seed, fresh=fresh)


def _reproduce(names: Sequence[str], scale: str, results: Path, data_dir: Path, *, seed: int, fresh: bool) -> None:
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
            click.echo(f"excise: {name}: {error}", err=True)
            failed.append(name)
            continue
        for claim in result["claims"]:
            click.echo(f"  {claim['verdict']}: {claim['paper']}\n    measured: {claim['measured']}")
            if claim["why"]:
                click.echo(f"    {claim['why']}")
        click.echo(f"  wrote {results / name}/README.md, plot.png, result.json")
    if failed:
        raise InputError(f"not all experiments could be run: {', '.join(failed)}; the reasons are above.")


def _say(message: Warning | str, *_: Any) -> None:
    click.echo(f"excise: warning: {message}", err=True)


def main() -> None:
    """Run the command line; what goes wrong on purpose is one line on standard error, not a traceback."""
    warnings.showwarning = _say  # type: ignore[assignment]  # one line, without the place in the code
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no bars still gets the numbers
    try:
        cli(prog_name="excise")
    except ExciseError as error:
        click.echo(f"excise: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
