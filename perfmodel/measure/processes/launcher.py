"""Processes that measure together: started, watched, and never left behind."""

from __future__ import annotations

import datetime as dt
import multiprocessing as mp
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any

from perfmodel.errors import DataMismatch, MeasurementError, PerfmodelError
from perfmodel.measure.job import MeasurementJob
from perfmodel.measure.processes import status as at
from perfmodel.measure.record import Row

Progress = Callable[[int, int], None]

GRACE_S = 0.7
"""How long the first failure waits for others: a rank that died makes its neighbours fail too."""

START_S = 120.0
"""Importing torch may take this long from a cold disk or on a busy machine (assumption)."""

LOOPBACK = "lo" if sys.platform.startswith("linux") else "lo0"


@dataclass(slots=True)
class _Team:
    job: MeasurementJob
    memory: Any
    processes: list[Any] = field(default_factory=list)
    pipes: list[Any] = field(default_factory=list)
    answer: tuple[list[Row], str] | None = None
    ended: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)  # ended without a word
    errors: dict[int, BaseException] = field(default_factory=dict)


def measure_with_processes(
    job: MeasurementJob, progress: Progress | None = None
) -> tuple[list[Row], str]:
    """Start a process per rank, let them measure, and end them, whatever happens.

    Returns
    -------
    rows : list of Row
    note : str

    Raises
    ------
    DataMismatch
        A rank ended with wrong data.
    MeasurementError
        A rank died, or no rank advanced for `job.timeout_s`; names it and what it was doing.
    """
    context = mp.get_context("spawn")
    team = _Team(job, context.RawArray("q", at.FIELDS * job.ranks))
    with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
        try:
            _start(team, context, folder)
            return _watch(team, progress, Path(folder))
        finally:
            _end(team)


def _start(team: _Team, context: Any, folder: str) -> None:
    with _interrupts_go_to_us():
        for rank in range(team.job.ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_work,
                args=(team.job, rank, folder, team.memory, theirs),
                name=f"rank {rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            team.processes.append(process)
            team.pipes.append(ours)


@contextmanager
def _interrupts_go_to_us() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: we end them, in order and without tracebacks."""
    resource_tracker.ensure_running()  # it would unblock the signal when started later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(team: _Team) -> None:
    for process in team.processes:
        process.kill()
    for process in team.processes:
        process.join()
        process.close()
    for pipe in team.pipes:
        pipe.close()


# ---------------------------------------------------------------- watching


def _watch(team: _Team, progress: Progress | None, folder: Path) -> tuple[list[Row], str]:
    last, advanced_s = at.ticks(team.memory, team.job.ranks), time.monotonic()
    while len(team.ended) < team.job.ranks:
        _listen(team, 0.1)
        if team.errors or team.dead:
            _raise_first(team, folder)
        now = at.ticks(team.memory, team.job.ranks)
        if now != last:
            last, advanced_s = now, time.monotonic()
        elif time.monotonic() - advanced_s > _patience_s(team.job, now):
            raise MeasurementError(_hanging(team))
        if progress is not None:
            done, total = at.progress_of(team.memory)
            if total:
                progress(done, total)
    if team.answer is None:
        raise MeasurementError("the ranks ended without an answer")
    return team.answer


def _patience_s(job: MeasurementJob, ticks: list[int]) -> float:
    """How long nobody may advance; starting is given longer."""
    return job.timeout_s if min(ticks) > 0 else max(job.timeout_s, START_S)


def _listen(team: _Team, wait_s: float) -> None:
    """Take what ranks report until one does or the time is over."""
    silent = team.ended | team.dead
    waiting = {pipe: rank for rank, pipe in enumerate(team.pipes) if rank not in silent}
    for pipe in connection.wait(list(waiting), timeout=wait_s):
        rank = waiting[pipe]
        try:
            message = team.pipes[rank].recv()
        except (EOFError, OSError):
            team.processes[rank].kill()  # its end of the pipe is closed: it is dead, or as good as
            team.processes[rank].join()
            team.dead.add(rank)
            continue
        team.ended.add(rank)
        if isinstance(message, BaseException):
            team.errors[rank] = message
        elif message is not None:
            team.answer = message


def _raise_first(team: _Team, folder: Path) -> None:
    """Raise what happened first: a death rather than the errors of those who waited for it."""
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until and not team.dead and not _own(team):
        _listen(team, 0.05)
        time.sleep(0.02)
    own = _own(team)
    if own and not team.dead:
        raise own[0]
    if team.dead:
        raise MeasurementError(
            "\n".join(_obituary(team, rank, folder) for rank in sorted(team.dead))
        )
    rank, error = next(iter(team.errors.items()))
    raise MeasurementError(f"rank {rank} failed while {at.describe(team.memory, rank)}: {error}")


def _own(team: _Team) -> list[BaseException]:
    return [error for error in team.errors.values() if isinstance(error, PerfmodelError)]


def _obituary(team: _Team, rank: int, folder: Path) -> str:
    code = team.processes[rank].exitcode
    how = f"exit code {code}"
    if code is not None and code < 0:
        how = f"killed by {signal.Signals(-code).name}"
    said = _last_line(folder / f"rank{rank}.log")
    return f"rank {rank} died ({how}) while {at.describe(team.memory, rank)}{said}"


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f"; it said: {lines[-1]}" if lines else ""


def _hanging(team: _Team) -> str:
    ticks = at.ticks(team.memory, team.job.ranks)
    behind = [rank for rank, done in enumerate(ticks) if done == min(ticks)]
    said = [
        f"rank {rank} ({at.describe(team.memory, rank)}{_stopped(team.processes[rank])})"
        for rank in behind
    ]
    others = [rank for rank in range(team.job.ranks) if rank not in behind]
    message = f"no rank advanced for {team.job.timeout_s:g} s; furthest behind: {', '.join(said)}"
    if others:
        furthest = max(others, key=lambda rank: ticks[rank])
        message += f"; furthest ahead: rank {furthest} ({at.describe(team.memory, furthest)})"
    return message


def _stopped(process: Any) -> str:
    """What tells a process that somebody has stopped from one that waits; empty without /proc."""
    try:
        said = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        return ", stopped by a signal" if said.rpartition(")")[2].split()[0] in "Tt" else ""
    except (OSError, IndexError):
        return ""


# ---------------------------------------------------------------- in the new process


def _work(job: MeasurementJob, rank: int, folder: str, memory: Any, pipe: Any) -> None:
    """One rank: what it finds, or why it failed, goes into the pipe."""
    _quiet(Path(folder) / f"rank{rank}.log")
    threading.Thread(target=_die_with_parent, args=(folder,), daemon=True).start()
    status = at.Status(memory, rank)
    try:
        join(job, status, Path(folder))
        from perfmodel.measure.processes.worker import measure_rank

        answer = measure_rank(job, status, shared_clock=True)
    except DataMismatch as error:
        pipe.send(error)
    except Exception as error:  # noqa: BLE001  (whatever it is, the parent has to hear of it)
        sent = error if isinstance(error, PerfmodelError) else RuntimeError(_first_line(error))
        pipe.send(sent)
    else:
        pipe.send(answer if rank == 0 else None)
    time.sleep(GRACE_S)  # neighbours should finish or fail of what happened, not of our leaving
    os._exit(0)  # threads of the library may still wait for neighbours


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _quiet(log: Path) -> None:
    """Keep what libraries print away from the parent's stdout and stderr."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)


def _die_with_parent(folder: str) -> None:
    """End when the parent does, even when it was killed and could neither end us nor clean up."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def join(job: MeasurementJob, status: at.Status, folder: Path | None) -> None:
    """Join the process group: over a file in `folder`, or as torchrun's environment says."""
    import torch
    import torch.distributed as dist

    status.stage(at.JOIN)
    status.step(at.PREPARE)
    torch.set_num_threads(1)
    device = None
    if job.backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", status.rank)))
        torch.cuda.set_device(device)
    store = None
    if folder is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)  # names of hosts may not resolve
        # Typed as missing: torch adds it at run time.
        store = getattr(dist, "FileStore")(str(folder / "store"), job.ranks)  # noqa: B009
    dist.init_process_group(
        job.backend,
        store=store,
        rank=status.rank,
        world_size=job.ranks,
        # With a device NCCL connects all ranks here and now: a first exchange among a few of them
        # would wait for the others (torch 2.13, batch_isend_irecv).
        device_id=device,
        # Longer than ours: the parent, which sees all ranks, names the one that hangs.
        timeout=dt.timedelta(seconds=job.timeout_s * (3 if folder is not None else 1)),
    )
    status.step(at.PREPARE)
