"""Clusters that are started for real: who is refused, what a killed worker costs, the same bits."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfmodel.errors import ExecutorUnavailable, InputError, SweepError
from perfmodel.scenario import load_scenario
from perfmodel.studies.sweep import clusters, run_sweep, variants
from perfmodel.studies.sweep.executor import map_unordered
from perfmodel.studies.sweep.run import write_csv
from tests.studies.sweep.started import (
    count,
    free_port,
    listens,
    named,
    running,
    start_sweep,
    until,
)

VARIANTS = 80
GRID = f"sweep={{grid: {{what_if.compute: {[1 + n / VARIANTS for n in range(VARIANTS)]}}}}}"
TOKEN = "0123456789abcdef" * 2
WITH_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}

in_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")


def needs(package: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec(package)
    return pytest.mark.skipif(found is None, reason=f"{package} is not installed")


def swept_alone(scenario: Path) -> str:
    """The table of a sweep in this process."""
    found = run_sweep(variants(load_scenario(scenario, [GRID])), jobs=1)
    write_csv(found, Path("alone.csv"))
    return Path("alone.csv").read_text()


def swept_with_a_death(scenario: Path, cluster: int, worker: str, *words: str, **more) -> str:
    """The table of a sweep in whose midst a worker of a session is killed.

    On a busy machine the other one may only be starting.
    """
    store = scenario.parent / "s.sqlite"
    more_words = ("--store", str(store), "--csv", "t.csv", "--json")
    one = start_sweep(str(scenario), "--set", GRID, *words, *more_words, **more)
    victims: list[int] = []

    def works() -> bool:
        victims[:] = named(cluster, worker) if count(store) >= 2 else []
        return bool(victims) or one.poll() is not None

    assert until(works, 120)
    os.kill(victims[0], signal.SIGKILL)
    when = count(store)
    out, said = one.communicate(timeout=300)
    assert one.returncode == 0, said
    assert when < VARIANTS
    assert out.startswith("{\n"), out  # of ray's words none stands before the document
    assert count(store) == VARIANTS
    return Path("t.csv").read_text()


# ---------------------------------------------------------------- dask


@pytest.fixture
def dask_cluster(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """Session of the workers, and address of the scheduler."""
    port = free_port()
    address, log = f"tcp://127.0.0.1:{port}", tmp_path / "workers.log"
    scheduler = ("-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", str(port))
    workers = ("-m", "dask", "worker", address, "--nworkers", "2", "--nthreads", "1")
    quiet = ("--no-dashboard",)
    with ExitStack() as servers:
        servers.enter_context(running(*scheduler, *quiet, log=tmp_path / "scheduler.log"))
        session = servers.enter_context(running(*workers, *quiet, log=log))
        yield session, address


@pytest.mark.slow
@in_proc
@needs("distributed")
def test_a_killed_worker_of_dask_costs_no_answer(
    scenario_file: Path, dask_cluster: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenario_file.parent)
    session, address = dask_cluster
    alone = swept_alone(scenario_file)
    assert until(lambda: len(named(session, "spawn_main")) == 2, 60)
    words = ("--backend", "dask", "--scheduler", address)
    assert swept_with_a_death(scenario_file, session, "spawn_main", *words) == alone


@pytest.mark.slow
@needs("distributed")
def test_no_scheduler_is_said_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "CONNECT_S", 1)
    with pytest.raises(
        ExecutorUnavailable, match=r"no dask scheduler answers at tcp://127\.0\.0\.1:1"
    ):
        list(map_unordered(abs, [(1,)], backend="dask", scheduler="tcp://127.0.0.1:1"))


@needs("distributed")
def test_a_server_that_is_no_scheduler_is_said_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Client waits for ever for its greeting; a scheduler greets first."""
    monkeypatch.setattr(clusters, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ExecutorUnavailable, match="what listens there says nothing"):
            list(map_unordered(abs, [(1,)], backend="dask", scheduler=address))


@pytest.mark.parametrize("address", ["tls://127.0.0.1:1", "ws://127.0.0.1:1", "http://a:1"])
@needs("distributed")
def test_only_plain_tcp_reaches_a_scheduler(address: str) -> None:
    with pytest.raises(InputError, match=f"--scheduler: found '{address}'"):
        list(map_unordered(abs, [(1,)], backend="dask", scheduler=address))


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


def iter_of(*numbers: int) -> list[tuple[int]]:
    return [(number,) for number in numbers]


# ---------------------------------------------------------------- ray


@pytest.fixture
def ray_cluster(tmp_path: Path) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Session of a head with two workers that asks for a token, its address, the environment."""
    port = free_port()
    words = ("--head", "--port", str(port), "--num-cpus", "2", "--include-dashboard", "false")
    command = ("-m", "ray.scripts.scripts", "start", *words, "--disable-usage-stats", "--block")
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # paths of sockets are short
        here = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled"}
        log = tmp_path / "ray.log"
        with running(*command, log=log, env={**here, **WITH_TOKEN}) as session:
            if not until(lambda: listens(port) and bool(named(session, "raylet")), 60):
                pytest.skip(f"ray does not start here: {log.read_text()[-500:]}")
            yield session, f"127.0.0.1:{port}", here


@pytest.mark.slow
@in_proc
@needs("ray")
def test_ray_asks_for_a_token_and_a_killed_worker_costs_no_answer(
    scenario_file: Path, ray_cluster: tuple[int, str, dict[str, str]], monkeypatch
) -> None:
    monkeypatch.chdir(scenario_file.parent)
    session, address, here = ray_cluster
    words = ("--backend", "ray", "--scheduler", address)
    refused = start_sweep(str(scenario_file), "--set", GRID, *words, env=here)
    said = refused.communicate(timeout=120)[1]
    assert refused.returncode == 2
    assert len(said.splitlines()) == 1
    assert "AuthenticationError" in said
    assert "RAY_AUTH_MODE" in said
    alone = swept_alone(scenario_file)
    env = {**here, **WITH_TOKEN}
    assert swept_with_a_death(scenario_file, session, "ray::_answer", *words, env=env) == alone


@pytest.mark.slow
@needs("ray")
def test_an_address_file_of_a_ray_that_has_ended_is_said_soon(
    scenario_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{free_port()}")
    env = {"RAY_TMPDIR": str(tmp_path), "RAY_ADDRESS": ""}
    one = start_sweep(str(scenario_file), "--backend", "ray", env=env)
    said = one.communicate(timeout=120)[1]
    assert one.returncode == 2
    assert "nothing listens at" in said
    assert "--scheduler local starts one here" in said


class FakeRay:
    """What of ray is used, one call at a time and the last begun first."""

    class exceptions:  # noqa: N801  (ray's name)
        RayError = ArithmeticError

    _private = SimpleNamespace(
        worker=SimpleNamespace(),
        services=SimpleNamespace(canonicalize_bootstrap_address=lambda address: address),
    )

    def __init__(self) -> None:
        self.begun: list[tuple] = []
        self.addresses: list[str | None] = []
        self.most = 0

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str | None, **_: object) -> None:
        self.addresses.append(address)

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


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_no_ray_cluster_is_said_soon(monkeypatch, address: str) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    with pytest.raises(ExecutorUnavailable, match=f"nothing listens at {address} .*refused"):
        list(map_unordered(abs, [(1,)], backend="ray", scheduler=address))


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
