"""Commands that several processes carry out together, as ``torchrun -m excise`` starts them; others refuse that."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from excise._support.launchers import is_first_started, started_processes
from excise._support.reading import reason
from excise.errors import InputError

TERMINATED = 143  # 128 and the number of the signal


def refuse_several(command: str) -> None:
    """Refuse to do the same in each of several processes."""
    if (count := started_processes()) > 1:
        raise InputError(
            f"excise {command} works in one process, and WORLD_SIZE={count} says that {count} were started; forget and "
            "audit can share their work, so start the others without torchrun."
        )


def shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that all processes of a launcher carry out together."""

    @functools.wraps(command)
    def together(*arguments: Any, **options: Any) -> Any:
        if started_processes() <= 1:
            return command(*arguments, **options)
        from excise import processes

        with _group(), processes.together(f"excise {command.__name__}"):
            processes.agree({"command line": repr(sys.argv[1:])}, "the command line")
            return command(*arguments, **options)

    return together


@contextmanager
def _group() -> Iterator[None]:
    """A process group for the time of a command; one that is there is used."""
    import torch
    import torch.distributed as dist

    from excise.processes.group import hang_up

    if dist.is_initialized():
        yield
        return
    gpus = torch.cuda.is_available() and dist.is_nccl_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"the {started_processes()} processes that WORLD_SIZE names can't find each other ({reason(error)}); "
                "start them by torchrun --nproc-per-node N -m excise ..., or unset WORLD_SIZE."
            ) from None
        try:
            yield
        finally:
            hang_up()
            dist.destroy_process_group()
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(*_: int | FrameType | None) -> None:
    """Say why, where the launcher ends this process because another one has ended."""
    click.echo("excise: stopped by the launcher, as when another process failed; files are as they were", err=True)
    sys.exit(TERMINATED)


def say(words: str) -> None:
    """Print, in the first process alone."""
    if is_first_started():
        click.echo(words)
