"""Options that several commands have, and the check of files that options name."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from excise._support.reading import reason
from excise.errors import InputError


class FilePath(click.Path):
    """A path; one that no file can have, such as with the character NUL, is an error of the option."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Make a path of a word."""
        try:
            return super().convert(value, param, ctx)
        except ValueError as error:
            self.fail(f"no file can have the name {str(value)!r} ({error}).", param, ctx)


FILE = FilePath(path_type=Path)
task_option = click.option(
    "--task", "address", required=True, metavar="MODULE:FACTORY", help="A function that makes the excise.Task."
)
request_option = click.option(
    "--forget",
    "spec",
    required=True,
    metavar="SPEC",
    help="random:1%, class:3, class:3:100, hardest:20, ids:3,5,9 or ids:FILE.",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),  # what torch takes
    default=0,
    show_default="0",
    metavar="N",
    help="For everything random.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
show_samples_option = click.option(
    "--show-samples", is_flag=True, help="Let the page show the forgotten samples, not only their hashes."
)


@dataclass(frozen=True)
class PageOptions:
    """What an audit is given besides the models, and a report besides what was measured."""

    reference: str | None
    operator: str | None
    hash_key: Path | None
    also: tuple[str, ...] = ()
    """Addresses of functions that give further sets."""

    def further_sets(self) -> dict[str, Any]:
        """The sets that forgotten samples are looked for in besides, by name."""
        from excise.evidence.elsewhere import admitted_sets
        from excise.task.loading import made_by

        found: dict[str, Any] = {}
        for address in self.also:
            given = made_by(address, "further set")
            named = given if isinstance(given, Mapping) else {address.rpartition(":")[2]: given}
            if twice := sorted(map(str, found.keys() & named.keys())):
                raise InputError(f"--also {address}: there is another set of the name {twice[0]!r}; name it otherwise.")
            found |= named
        admitted_sets(found)  # what is none is said before the work
        return found

    def key(self) -> bytes | None:
        """The key for hashes of samples, from its file; None for one that is not kept."""
        from excise.evidence.sample_hashes import read_or_make_key

        return None if self.hash_key is None else read_or_make_key(self.hash_key)


def page_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the report, handed over together as ``page_options``."""

    @click.option("--reference", metavar="TEXT", help="For the report: what the request is filed under.")
    @click.option("--operator", metavar="TEXT", help="For the report: who carries it out.")
    @click.option(
        "--hash-key",
        type=FILE,
        metavar="FILE",
        help="Secret key by which samples are hashed; made if there is none.  [default: one that is not kept]",
    )
    @click.option(
        "--also",
        multiple=True,
        metavar="MODULE:FACTORY",
        help="A function that gives a further set (for validation, say), or a set and its keys, to look for the "
        "samples in; several times for several.",
    )
    @functools.wraps(command)
    def packed(
        *arguments: Any,
        reference: str | None,
        operator: str | None,
        hash_key: Path | None,
        also: tuple[str, ...],
        **others: Any,
    ) -> None:
        command(*arguments, page_options=PageOptions(reference, operator, hash_key, also), **others)

    return packed


def require_file(file: Path | None, option: str, endings: tuple[str, ...]) -> str:
    """Refuse a file of another kind before any work is done; gives its ending."""
    if file is None:
        return ""
    if file.suffix.lower() not in endings:
        raise InputError(f"{option} {file.name}: the name must end in {' or '.join(endings)}.")
    return file.suffix.lower()


def require_writable(file: Path | None, option: str, endings: tuple[str, ...]) -> str:
    """The same for a file to be written, which must be possible."""
    ending = require_file(file, option, endings)
    if file is None:
        return ending
    try:
        if not file.parent.is_dir():
            raise InputError(f"{option} {file}: there is no folder {file.parent}.")
        if file.exists() and not file.is_file():
            raise InputError(f"{option} {file}: is a folder, pipe or device, not a file; name another file.")
        file.resolve().lstat()
    except FileNotFoundError:
        pass  # it is new
    except InputError:
        raise
    except (OSError, ValueError) as error:  # a name that is too long, or has a character that names can't have
        raise InputError(f"{option} {file}: no file can have this name ({reason(error)}).") from None
    if not os.access(file.resolve().parent, os.W_OK | os.X_OK):
        raise InputError(f"{option} {file}: the folder {file.parent} can't be written to.")
    return ending


def proof_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What commands that may write a page have in common: what it shows and says, the seed, and JSON instead."""
    for option in (json_option, seed_option, page_options, show_samples_option):
        command = option(command)
    return command


def workers_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that trains many models the options of workers; it runs with joblib told of these."""

    @click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Train in so many processes at once.")
    @click.option(
        "--cluster", metavar="tcp://HOST:PORT", help="Train on a cluster of Dask: the address of its scheduler."
    )
    @functools.wraps(command)
    def told(*arguments: Any, jobs: int | None, cluster: str | None, **others: Any) -> None:
        if (jobs or cluster) and others.get("retrainings") == 0:
            raise InputError("--jobs and --cluster are for retrainings, of which there are none; pass --retrainings.")
        from excise._support.cluster import told_of_workers

        with told_of_workers(jobs, cluster):
            command(*arguments, **others)

    return told


def listed(words: str) -> list[str]:
    """Words between commas."""
    return [word.strip() for word in words.split(",") if word.strip()]


def print_table(found: Any, tables: Any, *, markdown: bool) -> None:
    """Print an outcome by the module that knows its table, for a page or for a terminal."""
    if markdown:
        click.echo(tables.markdown(found))
        return
    from rich.console import Console

    tables.show(found, Console())
