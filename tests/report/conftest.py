"""A hand-made but realistic result: ResNet-50-like training on 1 to 256 GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import networkx as nx
import pytest

from perfmodel.studies.run.result import BucketTime, LinkUse, Result, SizeResult
from perfmodel.studies.run.usage import Memory
from perfmodel.timeline import Span, Timeline, exposed_s
from perfmodel.topology.model import Gpu, Topology
from perfmodel.topology.own_graph import topology_of
from perfmodel.workload.model import Sample

LAYERS = 53
BATCH = 64
# Bytes of ResNet-50's buckets, from a public 2-GPU trace (elements 2049000, 7875584, ... of fp32).
BUCKETS = (8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160)
HOSTS = 32

GPU = Gpu(
    name="Example 80GB",
    memory_bytes=80e9,
    memory_Bps=2e12,
    peak_flops={"tf32": 156e12},
    matmul_efficiency={"tf32": 0.6},
    memory_efficiency=0.8,
    kernel_overhead_s=2e-6,
    launch_s=6e-6,
    streaming_multiprocessors=108,
    overlap_slowdown=1.1,
    generation="ampere",
)


def build_topology(hosts: int = HOSTS) -> Topology:
    """Hosts of 8 GPUs on one NVSwitch, 2 PCIe switches with a NIC each, one fabric switch."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    ranks: list[str] = []
    cables: list[tuple[str, str, str, float]] = []

    def node(name: str, kind: str, host: int) -> str:
        own = {} if host < 0 else {"node": host}
        model = {"model": "a100-sxm4-80gb"} if kind == "gpu" else {}
        graph.add_node(name, kind=kind, local=name.rpartition("/")[2], **own, **model)
        return name

    leaf = node("leaf0", "switch", -1)
    for host in range(hosts):
        nvs = node(f"n{host}/nvs", "nvswitch", host)
        plx = [node(f"n{host}/plx{i}", "pcie_switch", host) for i in range(2)]
        nics = [node(f"n{host}/nic{i}", "nic", host) for i in range(2)]
        for i in range(8):
            gpu = node(f"n{host}/gpu{i}", "gpu", host)
            ranks.append(gpu)
            cables += [(gpu, nvs, "nvlink", 300e9), (gpu, plx[i // 4], "pcie", 25e9)]
        for i in range(2):
            cables.append((plx[i], nics[i], "pcie", 25e9))
            cables.append((nics[i], leaf, "infiniband", 25e9))
    for a, b, kind, rate in cables:
        for src, dst in ((a, b), (b, a)):
            graph.add_edge(
                src,
                dst,
                kind=kind,
                bandwidth=rate,
                latency=1e-6,
                lanes=1,
                index=graph.number_of_edges(),
            )
    graph.graph["routing"] = "nccl"
    return replace(
        topology_of(graph, "example-a100"),
        gpu=GPU,
        sources={"nvlink": "datasheet"},
        assumptions=(),
        fabric="single-switch",
    )


def build_spans(bytes_per_s: float) -> tuple[Span, ...]:
    """One DDP step: forward, backward with copies, buckets in order, optimizer."""
    clock = 0.0
    spans: list[Span] = []

    def work(name: str, kind: str, length: float) -> float:
        nonlocal clock
        spans.append(Span(name, kind, "all", "compute", 0, clock, clock + length, clock))
        clock += length
        return clock

    for layer in range(LAYERS):
        work(f"layer{layer} forward", "forward", 0.4e-3 * (1.4 - layer / LAYERS))
    ready: dict[int, float] = {}
    for layer in reversed(range(LAYERS)):
        work(f"layer{layer} backward", "backward", 0.85e-3 * (1.4 - layer / LAYERS))
        for part in range(3):
            work(f"copy layer{layer}.{part}", "copy", 8e-6)
        ready[min(4, (LAYERS - 1 - layer) * 5 // LAYERS)] = clock
    free = 0.0
    for index, nbytes in enumerate(BUCKETS):
        start = max(free, ready[index])
        free = start + 150e-6 + nbytes / bytes_per_s
        spans.append(
            Span(
                f"all_reduce bucket {index}",
                "communication",
                "all",
                "comm",
                0,
                start,
                free,
                ready[index],
                nbytes=nbytes,
                bucket=index,
            )
        )
    clock = max(clock, free)
    work("optimizer", "optimizer", 1.1e-3)
    return tuple(sorted(spans, key=lambda span: span.start_s))


def build_point(gpus: int, base_rate: float | None = None) -> SizeResult:
    """A point whose numbers are read off its spans."""
    spans = build_spans(90e9 if gpus <= 8 else 11e9 / (1 + 0.06 * math.log2(gpus / 8)))
    if gpus == 1:
        spans = tuple(span for span in spans if span.kind != "communication")
    comm = [(s.start_s, s.end_s) for s in spans if s.kind == "communication"]
    busy = [(s.start_s, s.end_s) for s in spans if s.kind != "communication"]
    exposed = exposed_s(comm, busy)
    times = {
        part: sum(s.end_s - s.start_s for s in spans if s.kind == kind)
        for part, kind in (
            ("forward", "forward"),
            ("backward", "backward"),
            ("copies", "copy"),
            ("optimizer", "optimizer"),
        )
    }
    compute = sum(times.values())
    step = compute + exposed
    if gpus == 1:
        step = compute
    rate = gpus * BATCH / step
    buckets = tuple(
        BucketTime(
            s.bucket or 0,
            s.nbytes,
            s.ready_s,
            s.start_s,
            s.end_s,
            (f"layer{4 - (s.bucket or 0)}.9.weight", f"layer{4 - (s.bucket or 0)}.0.conv1.weight"),
        )
        for s in spans
        if s.kind == "communication"
    )
    links = tuple(
        LinkUse(f"n{host}/{a}", f"n{host}/{b}" if "/" not in b else b[1:], kind, nbytes, share)
        for host in range(min(2, max(1, gpus // 8)))
        for a, b, kind, nbytes, share in (
            *((f"gpu{i}", "nvs", "nvlink", 178e6, 0.006) for i in range(8)),
            ("plx0", "nic0", "pcie", 200e6, 0.11),
            ("plx1", "nic1", "pcie", 200e6, 0.11),
            ("nic0", "/fabric/leaf0", "infiniband", 200e6, 0.31),
            ("nic1", "/fabric/leaf0", "infiniband", 200e6, 0.62),
        )
        if gpus > 1
    )
    return SizeResult(
        gpus=gpus,
        nodes=max(1, gpus // 8),
        step_time_s=step,
        first_step_time_s=1.3 * step,
        compute_s=compute,
        comm_s=sum(e - s for s, e in comm),
        exposed_comm_s=exposed,
        breakdown_s={**times, "exposed communication": exposed, "slowdown": 0.0, "idle": 0.0},
        samples_per_s=rate,
        scaling_efficiency=rate / gpus / (base_rate or rate),
        bottleneck="compute" if gpus == 1 else "n0/nic1 -> fabric/leaf0 (infiniband)",
        limit="compute" if gpus == 1 else "communication",
        global_batch=BATCH * gpus,
        batch_per_gpu=BATCH,
        memory=Memory(0.102e9, 0.102e9, 0.102e9, 0.102e9, 11.2e9, capacity_bytes=80e9),
        interval_s=None,
        buckets=buckets,
        links=links,
        timeline=Timeline(spans),
        mode="flow, 1 rank class",
    )


def build_result() -> Result:
    """Six sizes, 1 to 256 GPUs."""
    single = build_point(1)
    points = (single, *(build_point(n, single.samples_per_s) for n in (8, 16, 64, 128, 256)))
    return Result(
        scenario="resnet50-a100",
        question="How does ResNet-50 scale from 1 to 256 GPUs?",
        workload="resnet50",
        strategy="ddp",
        machine="example-a100 x 32",
        scaling="weak",
        points=points,
        efficiency_base=1,
        samples=Sample("image"),
        topology=build_topology(),
        assumptions=(
            "Data loading keeps up with training.",
            "assumption: compute is 1.1 times slower while a collective runs on the same GPU.",
        ),
        sources={"gpu": "vendor datasheet, https://example.com/gpu.pdf", "network": "assumption"},
        provenance={"version": "0.1.0", "seed": "0", "scenario digest": "sha256:0123abcd"},
    )


@pytest.fixture(scope="session")
def result() -> Result:
    """Return the realistic result."""
    return build_result()


@pytest.fixture
def with_main(result: Result) -> Callable[..., Result]:
    """Return a function that changes fields of the last point."""

    def change(**fields: object) -> Result:
        return replace(result, points=(*result.points[:-1], replace(result.main, **fields)))  # type: ignore[arg-type]

    return change
