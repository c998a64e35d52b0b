"""Many workers on processes of this machine: the same bits, whatever happens to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfmodel.errors import InputError, SweepError
from perfmodel.scenario import load_scenario
from perfmodel.studies.sweep import SweepResult, executor, run_sweep, variants
from perfmodel.studies.sweep.executor import check_backend, count_cores, map_unordered
from tests.studies.sweep.started import count, gone, members, named, started

GRID = {
    "strategy.bucket_cap": ["1 MiB", "5 MiB", "25 MiB"],
    "what_if.network_bandwidth": [0.7, 2, "infinite"],
    "cluster.nodes": [2, 3],
}


def tiny(**axes) -> tuple:
    return variants(load_scenario("bucket-size-slow-ethernet", ["model.name=resnet18"]), **axes)


@pytest.fixture(scope="module")
def alone() -> SweepResult:
    """In this process, one after the other."""
    return run_sweep(tiny(grid=GRID), jobs=1)


@pytest.mark.slow
def test_two_processes_give_the_same_bits(alone: SweepResult) -> None:
    assert run_sweep(alone.variants, jobs=2) == alone
    assert alone.failed == 0
    assert alone.table["step_time_s"].nunique() > 10


@pytest.mark.slow
def test_results_come_as_they_are_ready() -> None:
    assert next(map_unordered(abs, iter_of(-3, -4), jobs=1)) == 3
    assert sorted(map_unordered(abs, iter_of(*range(-20, 0)), jobs=2)) == list(range(1, 21))
    assert list(map_unordered(abs, [], jobs=2)) == []


def test_the_order_of_variants_changes_no_answer(alone: SweepResult) -> None:
    backwards = run_sweep(alone.variants[::-1][:6], jobs=1)
    assert backwards.answers == alone.answers[::-1][:6]


def burn(work_s: float) -> int:
    """Compute for so long; the process that did."""
    end_s = time.process_time() + work_s
    while time.process_time() < end_s:
        pass
    return os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize(("share_s", "here"), [(0.1, 1), (60.0, 6)])
def test_processes_start_once_what_is_left_is_worth_them(
    share_s: float, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "SHARE_S", share_s)
    monkeypatch.setattr(executor, "COLD_S", 0.0)
    monkeypatch.setattr(executor, "count_cores", lambda: 2)
    calls = [(0.1,)] * 6
    assert [*map_unordered(burn, calls)].count(os.getpid()) == here


def test_one_long_call_among_short_ones_is_no_reason_to_start_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "SHARE_S", 0.15)
    monkeypatch.setattr(executor, "COLD_S", 0.0)
    monkeypatch.setattr(executor, "count_cores", lambda: 2)
    calls = [(work_s,) for work_s in (0.005, 0.1, *[0.005] * 4)]
    assert set(map_unordered(burn, calls)) == {os.getpid()}


def test_all_faults_of_flags_at_once() -> None:
    for given, fields in (
        (("locky", None, 0), ["--backend", "-j"]),
        (("dask", None, None), ["--scheduler"]),
        (("loky", "tcp://h:1", -1), ["--scheduler", "-j"]),
    ):
        with pytest.raises(InputError) as caught:
            check_backend(*given)
        assert [fault.field for fault in caught.value.faults] == fields
    with pytest.raises(InputError, match="did you mean 'loky'"):
        check_backend("locky", None, 1)


def test_no_more_cores_than_this_process_may_use(monkeypatch) -> None:
    assert 1 <= count_cores() <= len(os.sched_getaffinity(0))
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert count_cores() == 1


def work(number: int) -> int:
    """Compute for a moment; return the process that does."""
    sum(range(200_000))
    return os.getpid()


@pytest.mark.parametrize("share_s", [60.0, pytest.param(1e-6, marks=pytest.mark.slow)])
def test_little_work_stays_in_this_process(monkeypatch: pytest.MonkeyPatch, share_s: float) -> None:
    """A first call does not say how long others take: it imports and reads, too."""
    monkeypatch.setattr(executor, "SHARE_S", share_s)
    monkeypatch.setattr(executor, "count_cores", lambda: 2)
    processes = list(map_unordered(work, iter_of(*range(6))))
    assert len(processes) == 6
    own = [each == os.getpid() for each in processes]
    assert own == [True] * 6 if share_s > 1 else [True] * 2 + [False] * 4


def iter_of(*numbers: int) -> list[tuple[int]]:
    return [(number,) for number in numbers]


def finish_or_die(number: int, last: int) -> int:
    """Be quick, but for the last one, whose worker is killed."""
    if number == last:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.slow
def test_a_killed_worker_is_said_and_what_was_finished_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next workers have as many threads of linear algebra as a fit asks for."""
    monkeypatch.setattr(executor, "RETRIES", 1)
    kept: list[int] = []
    said = r"worker process was killed 2 times.*memory.*-j 1"
    with pytest.raises(SweepError, match=said) as caught:
        kept.extend(map_unordered(finish_or_die, [(at, 60) for at in range(61)], jobs=2))
    assert caught.value.exit_code == 1
    assert sorted(kept) == list(range(60))
    names = [("OPENBLAS_NUM_THREADS",), ("OMP_NUM_THREADS",)]
    assert list(map_unordered(os.getenv, names, jobs=2, threads=3)) == ["3", "3"]


def die_once(number: int, marks: str) -> int:
    """Be killed where there is no mark of it yet."""
    mark = Path(marks, str(number))
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.slow
def test_more_calls_than_retries_may_lose_their_worker_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The oldest call is begun by itself once a worker is lost, which may be its first time: two.
    monkeypatch.setattr(executor, "RETRIES", 2)
    calls = [(number, str(tmp_path)) for number in range(4)]
    assert sorted(map_unordered(die_once, calls, jobs=2)) == list(range(len(calls)))


@pytest.mark.slow
def test_progress_counts_to_the_end(alone: SweepResult, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = tmp_path / "s.sqlite"
    twice = (*alone.variants[:3], alone.variants[1])

    def note(done: int, total: int) -> None:
        seen.append((done, total))

    run_sweep(twice, jobs=1, progress=note)
    assert seen == [(2, 4), (3, 4), (4, 4)]  # a question that is asked twice is answered once
    run_sweep(alone.variants[:2], jobs=1, store=path)
    seen.clear()
    run_sweep(alone.variants[:5], jobs=1, store=path, progress=note)
    assert seen == [(3, 5), (4, 5), (5, 5)]


# ---------------------------------------------------------------- processes that end too soon


INTERRUPTED = """
import os, signal, time
from perfmodel.studies.sweep.executor import map_unordered

def interrupted(number):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)
    return number

print(sorted(map_unordered(interrupted, [(number,) for number in range(6)], jobs=2)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no masks of signals here")
def test_no_worker_hears_ctrl_c() -> None:
    """In a process of its own, where no workers wait that another test has started."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3, 4, 5]\n", "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_ctrl_c_keeps_what_was_done(tmp_path: Path) -> None:
    one, path = started(tmp_path)
    os.killpg(one.pid, signal.SIGINT)
    out, said = one.communicate(timeout=60)
    assert one.returncode == 130
    assert out == ""
    assert said == f"stopped; what was done is in {path}: run again to go on\n"
    assert 2 <= count(path) < 400
    assert gone(one.pid)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    one, path = started(tmp_path)
    assert len(members(one.pid)) >= 3
    one.kill()
    one.communicate(timeout=60)
    assert gone(one.pid)
    assert 2 <= count(path) < 400


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_worker_that_is_killed_costs_no_answer(tmp_path: Path) -> None:
    one, path = started(tmp_path, 12)
    os.kill(named(one.pid, "popen_loky")[0], signal.SIGKILL)
    said = one.communicate(timeout=100)[1]
    assert one.returncode == 0, said
    assert "12 of 12 variants answered" in said
    assert "Traceback" not in said
    assert count(path) == 12
