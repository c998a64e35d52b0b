"""Calls on a dask or ray cluster of the user's own, each result as soon as it is ready."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from perfmodel.errors import ExecutorUnavailable, Fault, InputError, SweepError, refuse_if
from perfmodel.memo import T

WATCH_S = 0.5
"""How often to look again at what may have changed: a parent that ended, a scheduler that began."""

CONNECT_S = 10
"""How long to wait for a scheduler to answer, and for its first worker; seconds."""

REACH_S = 2
"""How long to wait for a port of ray to be opened; seconds."""

ANSWER_S = 30
"""How long ray may take to be imported, and to connect or say why not; seconds."""

CALLS_PER_WORKER = 2
"""Calls per worker that are under way, so that none waits for the next."""

RETRIES = 3
"""How often a call whose worker was killed is begun again: as by dask (``allowed-failures``) and
ray (``max_retries``) where nothing else is set."""

KEPT = "what was done until then is kept in the store, if there is one"


# ---------------------------------------------------------------- dask


def map_on_dask(
    function: Callable[..., T], calls: Sequence[tuple[Any, ...]], jobs: int | None, address: str
) -> Iterator[T]:
    """Call a function with each of some arguments; results come as they are ready.

    joblib's own backend for dask waits forever for a scheduler that died.

    `jobs`: calls at once; default: a few for each thread that the cluster has.
    Raises `SweepError`: the scheduler died, or a worker died and took its call with it three times.
    """
    with _connect_dask(address) as client:
        from asyncio import CancelledError as Cancelled

        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        under_way = jobs or CALLS_PER_WORKER * max(1, sum(client.nthreads().values()))
        begun = (client.submit(function, *call, pure=False) for call in calls)
        try:
            running = set(islice(begun, under_way))
            while running:
                done, running = _wait_on_dask(client, running)
                running |= set(islice(begun, len(done)))
                yield from (future.result() for future in done)
        except (Cancelled, CancelledError, CommClosedError, OSError) as error:
            raise SweepError(
                f"the dask scheduler at {address} no longer answers; {KEPT}: start it and run "
                f"again ({type(error).__name__})"
            ) from None
        except KilledWorker as error:
            raise SweepError(
                f"workers of the dask cluster were killed, most likely for want of memory; {KEPT}: "
                f"run again with more memory for each ({str(error).splitlines()[0]})"
            ) from None


def _wait_on_dask(client: Any, running: set[Any]) -> tuple[set[Any], set[Any]]:
    """Wait for a first result; dask itself would wait forever for new workers."""
    from distributed import wait

    while True:
        try:
            with client.as_current():
                ended = wait(running, CONNECT_S, "FIRST_COMPLETED")  # type: ignore[no-untyped-call]
        except TimeoutError:
            if client.nthreads():
                continue
            raise SweepError(f"the dask cluster has no workers left; {KEPT}") from None
        return set(ended.done), set(ended.not_done)


def _await_greeting(address: str, place: str) -> None:
    """Wait until what listens says something, as a scheduler does first of all.

    A Client waits forever for the greeting of another server, such as the scheduler's own
    dashboard.

    Raises `ExecutorUnavailable`: nothing listens there, or it is no scheduler.
    """
    host, _, port = place.removeprefix("tcp://").rpartition(":")
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as connection:
                if connection.recv(1):
                    return
            break
        except TimeoutError:
            break
        except (OSError, OverflowError) as error:  # it may be about to start
            if time.monotonic() > deadline_s:
                reason = getattr(error, "strerror", None) or error
                raise ExecutorUnavailable(
                    f"no dask scheduler answers at {address}: {reason}"
                ) from None
            time.sleep(WATCH_S)
    raise ExecutorUnavailable(
        f"no dask scheduler answers at {address}: what listens there says nothing (the port of a "
        "scheduler's dashboard, 8787 by default, is not the scheduler's, 8786)"
    )


@contextmanager
def _connect_dask(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
        from distributed.comm.addressing import resolve_address
    except ImportError:
        raise ExecutorUnavailable(
            "--backend dask needs dask and distributed: pip install 'perfmodel[dask]'"
        ) from None
    allowed = "an address such as tcp://10.0.0.5:8786"
    try:  # before: a Client of no address prints a traceback when it is collected
        place = resolve_address(address)
    except (OSError, ValueError) as error:
        raise InputError(Fault("--scheduler", f"{address!r} ({error})", allowed)) from None
    refuse_if(
        not place.startswith("tcp://"),
        "--scheduler",
        f"{address!r} (only tcp is used here)",
        allowed,
    )
    _await_greeting(address, place)
    try:
        client: Any = Client(  # type: ignore[no-untyped-call]
            address, timeout=CONNECT_S, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise ExecutorUnavailable(f"no dask scheduler answers at {address}: {error}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError:
            raise ExecutorUnavailable(f"the dask scheduler at {address} has no workers") from None
        log = logging.getLogger("distributed.client")
        log.disabled = True  # it prints tracebacks of a scheduler that died; the error says so
        try:
            yield client
        finally:
            client.close()
            log.disabled = False


# ---------------------------------------------------------------- ray


def map_on_ray(
    function: Callable[..., T],
    calls: Sequence[tuple[Any, ...]],
    jobs: int | None = None,
    address: str | None = None,
) -> Iterator[T]:
    """Call a function with each of some arguments; results come as they are ready.

    joblib's own backend for ray gives results only when all are ready, so that a sweep that is
    stopped would keep none.

    `function`: at the top level of a module that the workers have.
    `jobs`: calls at once; default: as many as the cluster has CPUs.
    `address`: HOST:PORT of a cluster, or "auto"; default: as ``ray.init`` finds one or makes one
        here.
    Raises `SweepError`: a call's worker was killed again and again, or lacks what it needs.
    Raises `ExecutorUnavailable`: ray is not installed, or no cluster answers.
    """
    with _connect_ray(address) as ray:
        under_way = jobs or CALLS_PER_WORKER * max(1, int(ray.cluster_resources().get("CPU", 1)))
        work = ray.remote(max_retries=RETRIES)(function)
        begun = (work.remote(*call) for call in calls)
        running = list(islice(begun, under_way))
        try:
            while running:
                done, running = ray.wait(running)
                running += islice(begun, len(done))
                yield from ray.get(done)
        except ray.exceptions.RayError as error:
            raise SweepError(
                f"a ray worker failed; {KEPT}: {str(error).strip().splitlines()[-1]}"
            ) from None


@contextmanager
def _connect_ray(address: str | None) -> Iterator[Any]:
    try:
        import ray
    except ImportError:
        raise ExecutorUnavailable("--backend ray needs ray: pip install 'perfmodel[ray]'") from None
    ours = not ray.is_initialized()
    try:
        if ours:
            _try_ray(ray, address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # noqa: BLE001  (ray raises that itself, of no kind of its own)
        raise ExecutorUnavailable(f"--backend ray: {error}") from None
    printer, printer._worker_logs_enabled = ray._private.worker, not ours
    try:  # it would print on stdout that a worker was killed
        yield ray
    finally:
        if ours:
            ray.shutdown()
        printer._worker_logs_enabled = True


CONNECT_TO_RAY = """import logging, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
except Exception as error:
    lines = str(error.__cause__ or error).strip().splitlines()
    sys.exit(print(*lines[-1 if error.__cause__ else 0:]) or 1)
"""
"""The cause of "failed to connect" is a traceback, which ends with what the cluster said."""

ONCE = {"RAY_gcs_server_port_wait_time_s": "1", "RAY_py_gcs_connect_timeout_s": "5"}
"""Settings of ray: how often it tries to connect, and for how many seconds."""

NOT_SAID = (
    ", which RAY_ADDRESS says, or the file in which ray notes its last cluster (`ray stop` removes "
    "it); --scheduler local starts one here"
)


def _try_ray(ray: Any, address: str | None) -> None:
    """Connect in a process of its own, which ray may end, keep waiting or fill with warnings.

    Raises `ConnectionError`: why ray does not connect, by its own last line. Where it would start a
        cluster here there is nothing to connect to.
    """
    place = address or ""
    if "://" not in place:  # that is the port of ray's client server
        place = ray._private.services.canonicalize_bootstrap_address(address) or ""
    if not place:
        return
    host, _, port = place.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise ConnectionError(
            f"nothing listens at {place} ({error.strerror or error}){'' if address else NOT_SAID}"
        ) from None
    command = [sys.executable, "-c", CONNECT_TO_RAY, address or "auto"]
    try:
        done = subprocess.run(  # noqa: S603  (this Python, and an address for ray)
            command, env={**os.environ, **ONCE}, capture_output=True, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"what listens at {place} does not answer as ray does") from None
    if done.returncode:
        said = (done.stdout or done.stderr).decode(errors="replace").strip().splitlines()
        raise ConnectionError(f"ray does not connect to {place}: {''.join(said[-1:])}")
