"""Small machines made by hand, so that theory can say what must come out."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import networkx as nx
import pytest
from hypothesis import settings

from perfmodel.topology.compilation import compile_topology
from perfmodel.topology.model import Gpu, Topology

if TYPE_CHECKING:
    from playwright.sync_api import Browser

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs behind
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children would ignore Ctrl-C, too

# processes that tests start would compile the package anew, each for a second
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# tests run on all cores already: threads of torch and BLAS would wait for each other, busily
os.environ.setdefault("OMP_NUM_THREADS", "1")

# deadlines are a matter for benchmarks; everyone is judged by the same few examples, unless asked
RANDOM_CASES = "PERFMODEL_RANDOM_CASES" in os.environ
settings.register_profile(
    "untimed",
    deadline=None,
    derandomize=not RANDOM_CASES,
    max_examples=100 if RANDOM_CASES else 30,
)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let processes take over each other's tests, so that none ends long before the others."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the collector of cycles, and leave to it only what tests make.

    All tests and packages stay to the end: going over them again took a tenth of the time. What
    tests import later stays as well, and `perfmodel.garbage` unfreezes all: a full collection took
    another tenth, so that it is rare.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(5_000, 10, 20)
        gc.enable()


PLAIN_GPU = Gpu(
    name="test-gpu",
    memory_bytes=80e9,
    memory_Bps=2e12,
    peak_flops={"fp32": 20e12, "fp16": 300e12, "bf16": 300e12},
    matmul_efficiency={"fp32": 0.8, "fp16": 0.8, "bf16": 0.8},
    memory_efficiency=0.8,
    kernel_overhead_s=2e-6,
    launch_s=5e-6,
    streaming_multiprocessors=100,
    overlap_slowdown=1.0,
    generation="test",
)


def switched(
    bandwidth_Bps: Sequence[float],
    latency_s: Sequence[float],
    *,
    shared_Bps: float | None = None,
    down_Bps: float = 1e15,
) -> Topology:
    """GPUs on one NVSwitch; GPU g sends at bandwidth_Bps[g] with latency_s[g].

    Each receives at `down_Bps`, by default as good as at once.

    With `shared_Bps` all traffic crosses one trunk between two switches' halves instead.
    """
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name="hand-made")
    count = len(bandwidth_Bps)
    gpus = [f"n0/gpu{number}" for number in range(count)]
    for name in gpus:
        graph.add_node(name[3:], kind="gpu", model="a100-sxm4-80gb")
    for name in ("n0/cpu0", "n0/nvs", *(["n0/nvs2"] if shared_Bps else [])):
        kind = "cpu" if "cpu" in name else "nvswitch"
        graph.add_node(name[3:], kind=kind)
    arcs: list[tuple[str, str, str, float, float]] = []
    down = "n0/nvs2" if shared_Bps else "n0/nvs"
    for name, bandwidth, latency in zip(gpus, bandwidth_Bps, latency_s, strict=True):
        arcs.append((name, "n0/nvs", "nvlink", bandwidth, latency))
        arcs.append((down, name, "nvlink", down_Bps, 0.0))
    if shared_Bps:
        arcs.append(("n0/nvs", "n0/nvs2", "nvlink", shared_Bps, 0.0))
    for index, (src, dst, kind, bandwidth, latency) in enumerate(arcs):
        graph.add_edge(
            src[3:], dst[3:], index=index, kind=kind, bandwidth=bandwidth, latency=latency
        )
    return replace(compile_topology(graph), gpu=PLAIN_GPU, sources={}, assumptions=())


@pytest.fixture(scope="session")
def switched_topology() -> Callable[..., Topology]:
    """Maker of GPUs on one switch (see `switched`)."""
    return switched


@pytest.fixture(scope="session")
def theory() -> ModuleType:
    """Formulas from textbooks (``theory.py``)."""
    spec = importlib.util.spec_from_file_location("theory", Path(__file__).parent / "theory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what-ifs and intervals of answers of which a test looks at the steps alone."""
    from perfmodel.studies.run import one_loop_size
    from perfmodel.studies.run.steps import one_size

    monkeypatch.setattr(one_size, "simulate_reliefs", lambda *_: ())
    monkeypatch.setattr(one_size, "simulate_uncertainties", lambda *_: None)
    monkeypatch.setattr(one_size, "describe_sensitivity", lambda *_: ())
    monkeypatch.setattr(one_loop_size, "simulate_loop_reliefs", lambda *_: ())
    monkeypatch.setattr(one_loop_size, "simulate_loop_uncertainties", lambda *_: None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return headless Chromium; skip where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
