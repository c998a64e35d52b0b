"""Many calls on a ray cluster, or on the one that ray makes of this machine."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from perfmodel.errors import ExecutorUnavailable, SweepError

R = TypeVar("R")

CONNECT_S = 10
"""How long to wait for a cluster to answer; ray itself waits for minutes, then ends the process."""

AHEAD = 2
"""Calls per worker that are under way, so that none waits for the next."""


def each_on_ray(
    function: Callable[..., R],
    calls: Sequence[tuple[Any, ...]],
    jobs: int | None = None,
    address: str | None = None,
) -> Iterator[R]:
    """Call a function with each of some arguments; results come as they are ready.

    joblib's own backend for ray gives results only when all are there, so that nothing would be
    kept of a sweep that is stopped.

    Parameters
    ----------
    function : callable
        At the top level of a module that the workers have.
    calls : sequence of tuple
    jobs : int, optional
        Calls at once; default: as many as the cluster has CPUs.
    address : str, optional
        HOST:PORT of a cluster, or "auto"; default: as ``ray.init`` finds one or makes one here.

    Raises
    ------
    SweepError
        A worker was killed, or lacks what the function needs.
    ExecutorUnavailable
        ray or the cluster is not there.
    """
    with _connected(address) as ray:
        under_way = jobs or AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        work = ray.remote(max_retries=0)(_call)
        begun = (work.remote(function, call) for call in calls)
        running = list(islice(begun, under_way))
        try:
            while running:
                done, running = ray.wait(running)
                running += islice(begun, len(done))
                yield from ray.get(done)
        except ray.exceptions.RayError as error:
            said = str(error).strip().splitlines()[-1]
            raise SweepError(
                f"a ray worker failed; what was done until then is kept in the store, if there is "
                f"one: {said}"
            ) from None


def _call(function: Callable[..., R], call: tuple[Any, ...]) -> R:
    return function(*call)


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    try:
        import ray  # noqa: PLC0415  (an extra, 1 s of import)
    except ImportError:
        raise ExecutorUnavailable("--backend ray needs ray: pip install 'perfmodel[ray]'") from None
    ours = not ray.is_initialized()
    try:
        if ours:
            _check_reachable(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # noqa: BLE001  (ray raises that itself, of no kind of its own)
        found = "ray does not start" if address is None else f"no ray cluster answers at {address}"
        raise ExecutorUnavailable(f"{found}: {error}") from None
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Try the port of an address that has one."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
