"""Start a process per rank, watch them, and end them in every case."""

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
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any, NoReturn

from perfmodel.errors import MeasurementError, PerfmodelError
from perfmodel.measure import status as rank_status
from perfmodel.measure.job import MeasurementJob, MeasurementRow, Progress
from perfmodel.measure.status import shield_from_interrupt

GRACE_S = 0.7
"""Time after the first failure to wait for its cause: a dead rank makes its neighbours fail too."""

START_S = 120.0
"""Longest import of torch, from a cold disk or on a busy machine (assumption)."""

LOOPBACK = "lo" if sys.platform.startswith("linux") else "lo0"


@dataclass(slots=True)
class _RankProcesses:
    job: MeasurementJob
    statuses: list[rank_status.Status]
    processes: list[Any] = field(default_factory=list)
    pipes: list[Any] = field(default_factory=list)
    answer: tuple[list[MeasurementRow], str] | None = None
    ended: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)  # ended without a message
    errors: dict[int, BaseException] = field(default_factory=dict)

    @property
    def ticks(self) -> list[int]:
        """Steps that each rank has reached."""
        return [status.fields[0] for status in self.statuses]

    @property
    def own_errors(self) -> list[BaseException]:
        """Errors that ranks found themselves, not those of waiting for others."""
        return [error for error in self.errors.values() if isinstance(error, PerfmodelError)]


def run_processes(
    job: MeasurementJob, progress: Progress | None = None
) -> tuple[list[MeasurementRow], str]:
    """Start a process per rank, let them measure, and end them in every case.

    Returns
    -------
    rows : list of MeasurementRow
    note : str

    Raises
    ------
    DataMismatch
        A rank ended with wrong data.
    MeasurementError
        A rank died, or no rank advanced for `job.timeout_s`; names it and what it was doing.
    """
    context: Any = mp.get_context("spawn")
    memory = context.RawArray("q", rank_status.FIELDS * job.ranks)
    team = _RankProcesses(job, [rank_status.Status(memory, rank) for rank in range(job.ranks)])
    with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
        try:
            with shield_from_interrupt(resource_tracker.ensure_running):
                for rank in range(job.ranks):
                    ours, theirs = context.Pipe(duplex=False)
                    arguments = (job, rank, folder, memory, theirs)
                    process = context.Process(
                        target=_run_rank, args=arguments, name=f"rank {rank}", daemon=True
                    )
                    process.start()
                    theirs.close()
                    team.processes.append(process)
                    team.pipes.append(ours)
            return _wait_for_answer(team, progress, Path(folder))
        finally:
            for process in team.processes:
                process.kill()
            for process, pipe in zip(team.processes, team.pipes, strict=True):
                process.join()
                process.close()
                pipe.close()


# ---------------------------------------------------------------- watching


def _wait_for_answer(
    team: _RankProcesses, progress: Progress | None, folder: Path
) -> tuple[list[MeasurementRow], str]:
    job, advanced_s, last = team.job, time.monotonic(), team.ticks
    while len(team.ended) < job.ranks:
        _receive_messages(team, 0.1)
        if team.errors or team.dead:
            _raise_first_failure(team, folder)
        now = team.ticks
        if now != last:
            last, advanced_s = now, time.monotonic()
        # Longest time without progress of any rank; longer while processes start.
        elif time.monotonic() - advanced_s > max(job.timeout_s, 0 if min(now) > 0 else START_S):
            raise MeasurementError(_describe_hang(team))
        *_, done, total = team.statuses[0].fields
        if progress is not None and total:
            progress(done, total)
    if team.answer is None:
        raise MeasurementError("the ranks ended without an answer")
    return team.answer


def _receive_messages(team: _RankProcesses, wait_s: float) -> None:
    """Receive messages of ranks, waiting at most `wait_s` for the first."""
    silent = team.ended | team.dead
    waiting = {pipe: rank for rank, pipe in enumerate(team.pipes) if rank not in silent}
    for pipe in connection.wait(list(waiting), timeout=wait_s):
        rank = waiting[pipe]
        try:
            message = team.pipes[rank].recv()
        except (EOFError, OSError):
            team.processes[rank].kill()  # it has closed its end of the pipe: it is dead or will be
            team.processes[rank].join()
            team.dead.add(rank)
            continue
        team.ended.add(rank)
        if isinstance(message, BaseException):
            team.errors[rank] = message
        elif message is not None:
            team.answer = message


def _raise_first_failure(team: _RankProcesses, folder: Path) -> NoReturn:
    """Raise the first cause: the death of a rank, not the errors of ranks that waited for it."""
    deadline_s = time.monotonic() + GRACE_S
    while time.monotonic() < deadline_s and not team.dead and not team.own_errors:
        _receive_messages(team, 0.05)
        time.sleep(0.02)
    if team.own_errors and not team.dead:
        raise team.own_errors[0]
    if team.dead:
        deaths = (_describe_death(team, rank, folder) for rank in sorted(team.dead))
        raise MeasurementError("\n".join(deaths))
    rank, error = next(iter(team.errors.items()))
    raise MeasurementError(f"rank {rank} failed while {team.statuses[rank]}: {error}")


def _describe_death(team: _RankProcesses, rank: int, folder: Path) -> str:
    code, said = team.processes[rank].exitcode or 0, ""
    cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    with suppress(OSError, IndexError):
        log = (folder / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace")
        said = f"; it said: {log.strip().splitlines()[-1]}"
    return f"rank {rank} died ({cause}) while {team.statuses[rank]}{said}"


def _describe_hang(team: _RankProcesses) -> str:
    ticks = team.ticks
    behind = ", ".join(
        f"rank {rank} ({team.statuses[rank]}{_describe_stop(team.processes[rank])})"
        for rank, count in enumerate(ticks)
        if count == min(ticks)
    )
    furthest = ticks.index(max(ticks))
    ahead = f"; furthest ahead: rank {furthest} ({team.statuses[furthest]})"
    message = f"no rank advanced for {team.job.timeout_s:g} s; furthest behind: {behind}"
    return message + (ahead if max(ticks) > min(ticks) else "")


def _describe_stop(process: Any) -> str:
    """Describe a process that a signal has stopped; empty if it runs, or without /proc."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        if stat.rpartition(")")[2].split()[0] in "Tt":
            return ", stopped by a signal"
    return ""


# ---------------------------------------------------------------- in the new process


def _run_rank(job: MeasurementJob, rank: int, folder: str, memory: Any, pipe: Any) -> None:
    """Run one rank in its process; send its result, or the error, through the pipe."""
    # Libraries print on stdout and stderr: both go to a file.
    log = os.open(Path(folder) / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    threading.Thread(target=_exit_with_parent, args=(folder,), daemon=True).start()
    status = rank_status.Status(memory, rank)
    try:
        join_group(job, status, Path(folder))
        from perfmodel.measure.worker import measure_rank

        answer = measure_rank(job, status, shared_clock=True)
        pipe.send(answer if rank == 0 else None)
    except PerfmodelError as error:
        pipe.send(error)
    except Exception as error:  # noqa: BLE001  (the parent must receive every error)
        lines = [*str(error).strip().splitlines(), ""]
        pipe.send(RuntimeError(f"{type(error).__name__}: {lines[0]}"))
    # Neighbours must finish, or fail from the first cause, before this rank leaves.
    time.sleep(GRACE_S)
    os._exit(0)  # threads of the library may still wait for neighbours


def _exit_with_parent(folder: str) -> None:
    """End with the parent, even if it was killed and could neither end ranks nor clean up."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def join_group(job: MeasurementJob, status: rank_status.Status, folder: Path | None) -> None:
    """Join the process group: over a file in `folder`, or as torchrun's environment says."""
    import torch
    import torch.distributed as dist

    status.stage(rank_status.JOIN)
    status.step(rank_status.PREPARE)
    torch.set_num_threads(1)
    device = store = None
    if job.backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", status.rank)))
        torch.cuda.set_device(device)
    if folder is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)  # names of hosts may not resolve
        # Typed as missing: torch adds it at run time.
        store = getattr(dist, "FileStore")(str(folder / "store"), job.ranks)  # noqa: B009
    dist.init_process_group(
        job.backend,
        store=store,
        rank=status.rank,
        world_size=job.ranks,
        # With a device NCCL connects all ranks at once; otherwise a first exchange among a few of
        # them would wait for the others (torch 2.13, batch_isend_irecv).
        device_id=device,
        # Longer than the parent's, which sees all ranks and names the one that hangs.
        timeout=dt.timedelta(seconds=job.timeout_s * (3 if folder is not None else 1)),
    )
    status.step(rank_status.PREPARE)
