"""``excise unfit``: a scikit-learn estimator without some rows of the table that it was fitted on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from excise.cli.options import FILE, json_option, require_writable
from excise.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@click.command()
@click.argument("estimator", type=FILE)
@click.option("--data", "table", required=True, type=FILE, metavar="FILE", help="The table that it was fitted on.")
@click.option("--target", metavar="COLUMN", help="The column of y; leave it out for transformers.")
@click.option("--weight", metavar="COLUMN", help="The column of sample weights, if there were any.")
@click.option("--rows", required=True, metavar="N,N,...", help="Which rows shall go, the first after the header is 0.")
@click.option("--out", required=True, type=FILE, metavar="FILE", help="Where the new estimator goes.")
@click.option("--finish", is_flag=True, help="Bring an estimator whose solver stopped early to its minimum first.")
@click.option("--trust", is_flag=True, help="Open files that can run programs, such as .joblib.")
@json_option
def unfit(
    estimator: Path,
    table: Path,
    target: str | None,
    weight: str | None,
    rows: str,
    out: Path,
    finish: bool,
    trust: bool,
    as_json: bool,
) -> None:
    """Take rows out of a fitted scikit-learn ESTIMATOR, a .skops or .joblib file.

    What is written is the estimator that a fit on the other rows would have given, with what is guaranteed of it in
    words. Whether the table is the one that it was fitted on is checked.

    \b
    Examples:
      excise unfit model.skops --data patients.csv --target progression --rows 17,42 --out model-2.skops
      excise unfit model.joblib --data patients.csv --target progression --rows 17 --out model-2.joblib --trust
    """
    from excise.estimators import unfit as take_out
    from excise.estimators.files import ENDINGS, read_estimator, write_estimator
    from excise.statistics.tables import read_whole

    require_writable(out, "--out", ENDINGS)
    asked = _positions(rows)
    fitted = read_estimator(estimator, trusted=trust)
    X, y, weights = _split(read_whole(table), fitted, target, weight)
    done = take_out(fitted, X, y, asked, sample_weight=weights, finish=finish)
    write_estimator(done.estimator, out)
    found = {"rows": done.rows.tolist(), "bound": done.bound, "moved": done.moved, "words": done.words}
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    count = len(done.rows)
    click.echo(f"took {count} row{'' if count == 1 else 's'} out of {len(X):,}. {done.words}")
    click.echo(f"wrote {out}")


def _positions(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--rows must be whole numbers such as 17,42, not {text!r:.80}.") from None


def _split(frame: pd.DataFrame, fitted: Any, target: str | None, weight: str | None) -> tuple[Any, Any, Any]:
    """X, y and weights, as ``fit`` was given them: with names of columns where the estimator knows some."""
    for option, name in (("--target", target), ("--weight", weight)):
        if name is not None and name not in frame.columns:
            known = ", ".join(map(str, frame.columns[:20]))
            raise InputError(f"{option} {name}: the table has no such column; it has {known}.")
    y, weights = (None if name is None else frame[name].to_numpy() for name in (target, weight))
    inputs = frame.drop(columns=[name for name in (target, weight) if name is not None])
    names = getattr(fitted, "feature_names_in_", None)
    if names is None:
        return inputs.to_numpy(), y, weights
    if missing := [name for name in names if name not in inputs.columns]:
        raise InputError(f"--data: the estimator was fitted on a column {missing[0]!r}, which the table does not have.")
    return inputs[list(names)], y, weights
