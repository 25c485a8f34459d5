"""``excise slices``: which parts of a model can be updated."""

from __future__ import annotations

import json

import click

from excise.cli.options import json_option, task_option


@click.command()
@task_option
@json_option
def slices(address: str, as_json: bool) -> None:
    """List the layers of a model whose slices can be updated."""
    from excise.slices.slices import find_slices
    from excise.task.loading import load_task
    from excise.task.parameters import trainable

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
