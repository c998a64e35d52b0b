"""A size is not a switch: what is left out at some size changes times by 1 % at most.

Every shortcut with a threshold is put beside going without it, on the same small machine.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.arrays import FloatArray
from perfmodel.collectives.timing import (
    critical_path,
    recurrence,
    unrolled,
)
from perfmodel.collectives.timing import variable_rate as ring_folds
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import add_traffic
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.scenario import load_scenario
from perfmodel.simulate.engine import engine
from perfmodel.simulate.sharing import link_uses as link_patterns
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run import run_scenario
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.plan import forward_backward

MiB = 1 << 20
MOST = 0.01
"""Part of a time that a shortcut may change."""

FABRICS = ("fat-tree", "leaf-spine", "rail-optimised", "one-switch")
TEMPLATES = ("dgx-a100", "dgx-h100", "aws-p4d")


def machine(template: str, hosts: int, fabric: str) -> Machine:
    topology = build_topology(template, hosts=hosts, fabric=fabric)
    return make_machine(topology, load_library("nccl"))


def never(*_: object) -> bool:
    """No ring is like another."""
    return False


def whole_ring(rows: FloatArray) -> int:
    """No part of a ring comes back."""
    return rows.shape[1]


SHORTCUTS = {
    "long rings and chains in closed form": (recurrence, "LONG_RING_EDGES", 1, 10**9),
    "rings traced": (unrolled, "MOST_TRACED", 10**9, 0),
    "rings of like hosts": (critical_path, "period_of", critical_path.period_of, whole_ring),
    "like rings computed once": (ring_folds, "are_alike", ring_folds.are_alike, never),
    "link patterns and tree shapes counted once": (link_patterns, "LARGE_STAGE_LINKS", 0, 10**9),
}
"""What has the threshold, and its values with the shortcut and without."""


@pytest.mark.slow
@pytest.mark.parametrize("shortcut", SHORTCUTS)
@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    template=st.sampled_from(TEMPLATES),
    fabric=st.sampled_from(FABRICS),
    hosts=st.integers(2, 6),
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]),
    nbytes=st.sampled_from([MiB, 25 * MiB, 1024 * MiB]) | st.integers(MiB, 1024 * MiB),
    ring=st.booleans(),
)
def test_going_without_a_shortcut_changes_little(
    shortcut: str, template: str, fabric: str, hosts: int, op: str, nbytes: int, ring: bool
) -> None:
    algorithm = "ring" if ring and op != "broadcast" else None
    times_s = []
    for value in SHORTCUTS[shortcut][2:]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*SHORTCUTS[shortcut][:2], value)
            timer = UncontendedTimer(machine(template, hosts, fabric))
            times_s.append(timer.best(op, nbytes, range(8 * hosts), 0, algorithm)[1])
    assert times_s[0] == pytest.approx(times_s[1], rel=MOST)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "fabric", "algorithm"),
    [(t, f, "tree") for t in ("dgx-a100", "dgx-h100") for f in FABRICS]
    + [("dgx-h100", "fat-tree", "nvls_tree")],
)
@pytest.mark.parametrize("hosts", [2, 9, 64, 65])
def test_every_rail_carries_its_share_at_any_size(
    template: str, fabric: str, algorithm: str, hosts: int
) -> None:
    """On 512 GPUs and on 520: where rails share switches, their flows meet those of the others."""
    cluster = machine(template, hosts, fabric)
    lowered = lower_collective(
        cluster, "all_reduce", 64 * MiB, range(8 * hosts), algorithm=algorithm
    )[-1]
    assert lowered.schedule.nbytes == 64 * MiB
    arcs = cluster.topology.arcs
    nbytes = np.zeros(len(arcs))
    add_traffic(nbytes, lowered, payload=True)
    sent = {
        name: own
        for (name, _), kind, own in zip(arcs.names, arcs.kinds, nbytes.tolist(), strict=True)
        if "/nic" in name and kind not in {"pcie", "nvlink"}
    }
    assert len(sent) == 8 * hosts
    for host in range(hosts):
        rails = [sent[f"n{host}/nic{number}"] for number in range(8)]
        assert rails == pytest.approx([rails[0]] * 8)
        assert rails[0] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize(
    ("name", "batch"),
    [("resnet50-dgx-a100", 1), ("resnet50-dgx-a100", 12), ("bert-large-v100-25g", 2)],
)
def test_passes_in_one_piece_change_little(name: str, batch: int) -> None:
    """65 micro-steps, whose passes are one task each; limited by the host, by neither, the GPU."""
    changed = (
        "strategy.accumulate=65",
        "cluster.nodes=2",
        "scale=null",
        f"training.batch_per_gpu={batch}",
    )
    points = []
    for many in (64, 65):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forward_backward, "MANY_MICRO_BATCHES", many)
            points.append(run_scenario(load_scenario(name, changed)).points[0])
    one_piece, in_segments = points
    assert one_piece.step_time_s == pytest.approx(in_segments.step_time_s, rel=1e-9)
    assert one_piece.first_step_time_s == pytest.approx(in_segments.first_step_time_s, rel=MOST)
    kinds = [len(point.timeline.spans) for point in points]
    assert kinds[0] < kinds[1]


@pytest.mark.parametrize("ranks", [32, 33, 65])
def test_ranks_that_share_cores_wait_for_them_at_any_size(ranks: int) -> None:
    """A fluid has no cores: it would be twice as quick from one rank more on."""
    cluster = make_machine(
        build_topology("shaped-ethernet", hosts=ranks, fabric="one-switch"), load_library("gloo")
    )
    assert cluster.topology.sockets.cores is not None
    assert engine.uses_sockets(cluster, "flow")


LOCAL_EVENTS = {
    "slow rank": "{slow: {ranks: [3], by: 1.0000001}}",
    "slow host": "{slow: {nodes: [5], by: 1.0000001}}",
    "jitter": "{jitter: {cv: 0.0000001}}",
    "layers that are not merged": "{jitter: {cv: 0.0000001, per: layer}}",
}


@cache
def step_of_528(fabric: str, *events: str) -> float:
    changes = ("cluster.nodes=66", f"cluster.fabric={fabric}", "scale=null", *events)
    (point,) = run_scenario(load_scenario("resnet50-dgx-a100", changes), with_first=False).points
    assert point.gpus == 528
    return point.step_time_s


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize("fabric", ["rail-optimised", "fat-tree"])
@pytest.mark.parametrize("event", LOCAL_EVENTS)
def test_an_event_beside_the_links_leaves_the_network_alone(event: str, fabric: str) -> None:
    """More than 512 GPUs, and ranks that are slower by a ten-millionth: no other step time."""
    disturbed_s = step_of_528(fabric, f"events=[{LOCAL_EVENTS[event]}]")
    assert disturbed_s == pytest.approx(step_of_528(fabric), rel=1e-5)
