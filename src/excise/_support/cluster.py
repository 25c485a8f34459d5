"""Workers that a command is to use: processes on this machine, or a cluster of Dask by the address of its scheduler."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator

from excise._support.reading import reason
from excise._support.workers import require_same_versions
from excise.errors import InputError, MissingExtraError

PATIENCE = 10.0  # seconds for a cluster to answer
ADDRESS = re.compile(r"(tcp|tls|ucx|wss?)://\S+:\d{1,5}")


@contextlib.contextmanager
def told_of_workers(jobs: int | None, cluster: str | None) -> Iterator[None]:
    """Joblib is told of so many processes, or of a cluster, inside; with None for both of nothing.

    >>> with told_of_workers(2, None):
    ...     import joblib
    ...     joblib.effective_n_jobs(None)
    2
    """
    if jobs is not None and cluster is not None:
        raise InputError("--jobs and --cluster are two ways to have workers; pass one of them.")
    if jobs is None and cluster is None:
        yield
        return
    from joblib import parallel_config

    if cluster is None:
        with parallel_config(backend="loky", n_jobs=jobs):
            yield
        return
    with _connected(cluster) as client, parallel_config(backend="dask", client=client):
        yield


@contextlib.contextmanager
def _connected(address: str) -> Iterator[object]:
    """A client of the cluster's scheduler, or an error that says what is wrong with the address."""
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError("--cluster needs Dask; install it with: pip install 'excise[dask]'") from None
    if not ADDRESS.fullmatch(address):
        raise InputError(
            f"--cluster {address!r} is no address of a scheduler; pass what dask scheduler prints, such as "
            "tcp://10.0.0.1:8786."
        )
    try:
        with _quiet("distributed"):
            client = Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"--cluster {address}: no scheduler of Dask answers there within {PATIENCE:g} s ({reason(error)}); pass "
            "the address that dask scheduler prints, such as tcp://10.0.0.1:8786."
        ) from error
    with client:
        require_same_versions(client)
        yield client


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """What a package logs about a failure that is told in our own words."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
