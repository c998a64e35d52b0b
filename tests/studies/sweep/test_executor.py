"""Many workers: the same bits, on processes and on a dask cluster, whatever happens to them."""

from __future__ import annotations

import builtins
import importlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfmodel.errors import ExecutorUnavailable, InputError, SweepError
from perfmodel.scenario import load_scenario
from perfmodel.studies.sweep import SweepResult, run_sweep, variants
from perfmodel.studies.sweep.executor import check_backend, count_cores, map_unordered

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


def test_the_order_of_variants_changes_no_answer(alone: SweepResult) -> None:
    backwards = run_sweep(alone.variants[::-1][:6], jobs=1)
    assert backwards.answers == alone.answers[::-1][:6]


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        host="127.0.0.1",
    ) as here:
        yield here


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_bits(alone: SweepResult, cluster) -> None:
    address = cluster.scheduler_address
    assert address.startswith("tcp://")
    assert run_sweep(alone.variants, backend="dask", scheduler=address) == alone
    with cluster.get_client() as client:  # both had some of it
        assert len(client.scheduler_info()["workers"]) == 2


@pytest.mark.slow
def test_a_cluster_keeps_a_store_too(alone: SweepResult, cluster, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    here = {"backend": "dask", "scheduler": cluster.scheduler_address, "store": path}
    assert run_sweep(alone.variants[:5], **here).reused == 0
    again = run_sweep(alone.variants[:6], **here)
    assert again.reused == 5
    assert again.answers == alone.answers[:6]


@pytest.mark.slow
def test_no_scheduler_is_said_soon(monkeypatch) -> None:
    pytest.importorskip("distributed")
    from perfmodel.studies.sweep import executor

    monkeypatch.setattr(executor, "CONNECT_S", 1)
    with pytest.raises(
        ExecutorUnavailable, match=r"no dask scheduler answers at tcp://127\.0\.0\.1:1"
    ):
        list(map_unordered(abs, [(1,)], backend="dask", scheduler="tcp://127.0.0.1:1"))


def test_a_server_that_is_no_scheduler_is_said_soon(monkeypatch) -> None:
    """A Client waits for ever for its greeting; a scheduler greets first."""
    pytest.importorskip("distributed")
    from perfmodel.studies.sweep import executor

    monkeypatch.setattr(executor, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ExecutorUnavailable, match="what listens there says nothing"):
            list(map_unordered(abs, [(1,)], backend="dask", scheduler=address))


@pytest.mark.parametrize("address", ["tls://127.0.0.1:1", "ws://127.0.0.1:1", "http://a:1"])
def test_only_plain_tcp_reaches_a_scheduler(address: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match=f"--scheduler: found '{address}'"):
        list(map_unordered(abs, [(1,)], backend="dask", scheduler=address))


@pytest.mark.parametrize(
    ("backend", "extra"), [("dask", "perfmodel[dask]"), ("ray", "perfmodel[ray]")]
)
def test_a_missing_package_is_named(monkeypatch, backend, extra: str) -> None:
    real = builtins.__import__

    def without(name: str, *args, **more):
        if name.partition(".")[0] in {"distributed", "ray"}:
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ExecutorUnavailable) as caught:
        list(map_unordered(abs, [(1,), (2,)], backend=backend, scheduler="tcp://h:1"))
    assert extra in str(caught.value)


@pytest.fixture
def ray_here():
    """A ray of this machine; skip where it is not installed or does not start."""
    ray = pytest.importorskip("ray")
    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    except Exception as error:  # noqa: BLE001  (ray raises no kind of its own)
        pytest.skip(f"ray does not start here: {error}")
    yield ray
    ray.shutdown()


def test_ray_gives_the_same_bits_and_keeps_a_store(
    alone: SweepResult, ray_here, tmp_path: Path
) -> None:
    store = tmp_path / "s.sqlite"
    assert run_sweep(alone.variants[:4], backend="ray", store=store).answers == alone.answers[:4]
    again = run_sweep(alone.variants[:6], backend="ray", store=store)
    assert (again.reused, again.answers) == (4, alone.answers[:6])
    assert sorted(map_unordered(abs, iter_of(*range(-20, 0)), backend="ray")) == list(range(1, 21))
    with pytest.raises(SweepError, match="a ray worker failed"):
        list(map_unordered(os._exit, iter_of(1), backend="ray"))
    assert ray_here.is_initialized()  # it was not ours to end


class FakeRay:
    """What of ray is used, one call at a time and the last begun first."""

    class exceptions:  # noqa: N801  (ray's name)
        RayError = ArithmeticError

    def __init__(self) -> None:
        self.begun: list[tuple] = []
        self.addresses: list[str | None] = []
        self.most = 0

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str | None, **_: object) -> None:
        self.addresses.append(address)
        if address == "auto":
            raise ConnectionError("nobody there")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, **_: object):
        def prepared(function):
            def begin(*call):
                self.begun.append(call)
                return lambda: function(*call)

            return SimpleNamespace(remote=begin)

        return prepared

    def wait(self, running: list) -> tuple[list, list]:
        self.most = max(self.most, len(running))
        return running[-1:], running[:-1]

    def get(self, done: list) -> list:
        return [one() for one in done]

    def shutdown(self) -> None:
        self.addresses.append("let go")


def test_ray_is_asked_for_a_few_at_a_time(monkeypatch) -> None:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    coming = map_unordered(abs, iter_of(*range(-20, 0)), backend="ray")
    assert next(coming) == 17  # the last of four
    assert len(fake.begun) == 5
    assert sorted(coming) == [*range(1, 17), 18, 19, 20]
    assert fake.most == 4
    assert fake.addresses == [None, "let go"]
    with pytest.raises(SweepError, match=r"a ray worker failed.*modulo by zero"):
        list(map_unordered(divmod, [(1, 0)], backend="ray", jobs=1))
    assert fake.addresses[-1] == "let go"


@pytest.mark.parametrize(
    ("address", "said"), [("auto", "nobody there"), ("127.0.0.1:1", "refused")]
)
def test_no_ray_cluster_is_said_soon(monkeypatch, address: str, said: str) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with pytest.raises(ExecutorUnavailable, match=f"no ray cluster answers at {address}: .*{said}"):
        list(map_unordered(abs, [(1,)], backend="ray", scheduler=address))


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


@pytest.mark.slow
def test_a_fit_may_ask_for_threads_of_linear_algebra() -> None:
    name = [("OPENBLAS_NUM_THREADS",), ("OMP_NUM_THREADS",)]
    assert list(map_unordered(os.getenv, name, jobs=2, threads=3)) == ["3", "3"]


@pytest.mark.slow
def test_results_come_as_they_are_ready() -> None:
    assert next(map_unordered(abs, iter_of(-3, -4), jobs=1)) == 3
    assert sorted(map_unordered(abs, iter_of(*range(-20, 0)), jobs=2)) == list(range(1, 21))
    assert list(map_unordered(abs, [], jobs=2)) == []


def iter_of(*numbers: int) -> list[tuple[int]]:
    return [(number,) for number in numbers]


@pytest.mark.slow
def test_a_killed_worker_is_said_and_no_traceback() -> None:
    with pytest.raises(SweepError, match=r"worker process was killed.*memory.*-j 1") as caught:
        list(map_unordered(signal.raise_signal, iter_of(signal.SIGKILL, signal.SIGKILL), jobs=2))
    assert caught.value.exit_code == 1
    assert sorted(map_unordered(abs, iter_of(-1, -2), jobs=2)) == [
        1,
        2,
    ]  # and the next sweep has workers


def finish_or_die(number: int, last: int) -> int:
    """Be quick, but for the last one, whose worker is killed."""
    if number == last:
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.slow
def test_what_was_finished_when_a_worker_is_killed_is_kept() -> None:
    kept: list[int] = []
    with pytest.raises(SweepError, match="a worker process was killed"):
        kept.extend(map_unordered(finish_or_die, [(at, 60) for at in range(61)], jobs=2))
    assert sorted(kept) == list(range(60))


@pytest.mark.slow
def test_a_dask_scheduler_that_dies_ends_the_sweep_with_a_sentence() -> None:
    distributed = pytest.importorskip("distributed")
    kept: list[int] = []
    quick = {"distributed.comm.timeouts.connect": "3s"}  # the client tries again for so long
    with (
        importlib.import_module("dask").config.set(quick),
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            host="127.0.0.1",
        ) as here,
    ):
        results = map_unordered(
            slow, iter_of(*range(40)), backend="dask", scheduler=here.scheduler_address
        )
        kept.append(next(results))
        here.sync(here.scheduler.close)
        with pytest.raises(SweepError, match=r"scheduler at tcp.* no longer answers.*run again"):
            kept.extend(results)
    assert 1 <= len(kept) < 40


def slow(number: int) -> int:
    time.sleep(0.1)
    return number


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


def started(tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """A sweep of the command line with two workers that has some answers already."""
    path = tmp_path / "s.sqlite"
    code = "from perfmodel.cli import main; main()"
    sweep = f"sweep={{grid: {{seed: {list(range(400))}}}}}"
    one = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            "sweep",
            "bucket-size-slow-ethernet",
            "--set",
            sweep,
            "-j",
            "2",
            "--store",
            str(path),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until_s = time.monotonic() + 120
    while count(path) < 2 and one.poll() is None and time.monotonic() < until_s:
        time.sleep(0.02)
    return one, path


def count(path: Path) -> int:
    try:
        base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    except sqlite3.Error:
        return 0
    try:
        return int(base.execute("SELECT count(*) FROM answers").fetchone()[0])
    except sqlite3.Error:
        return 0
    finally:
        base.close()


def members(session: int) -> list[int]:
    """Processes of a session that are not merely waiting to be buried."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(state[3]) == session and state[0] != "Z":
                found.append(int(folder.name))
    return found


def gone(session: int) -> bool:
    until_s = time.monotonic() + 20
    while members(session) and time.monotonic() < until_s:
        time.sleep(0.1)
    return not members(session)


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
def test_a_worker_that_is_killed_ends_the_sweep_with_a_sentence(tmp_path: Path) -> None:
    one, path = started(tmp_path)
    for worker in members(one.pid):
        command = (Path("/proc") / str(worker) / "cmdline").read_text()
        if worker != one.pid and "popen_loky" in command:
            os.kill(worker, signal.SIGKILL)
            break
    out, said = one.communicate(timeout=60)
    assert one.returncode == 1
    assert out == ""
    assert said.startswith("a worker process was killed")
    assert "Traceback" not in said
    assert 2 <= count(path) < 400
