"""Both fidelities against what SimGrid said when it was asked (reports/oracle/simgrid.csv).

SimGrid is not needed here; ``python reports/oracle/simgrid_oracle.py`` asks it again.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "reports"))

from oracle.compared import WITHIN, of_cell, of_scene
from oracle.peers_tables import Cell, cells
from oracle.scenes import Launch, Scene, flow, play
from oracle.shared_links import CASES, scenes
from oracle.simgrid_scene import digest, exported

TABLE = Path(__file__).parents[2] / "reports" / "oracle" / "simgrid.csv"
with TABLE.open(newline="", encoding="utf-8") as file:
    RECORDED = {(row["scene"], int(row["launch"])): row for row in csv.DictReader(file)}


def test_enough_was_asked() -> None:
    shared = {scene for scene, _ in RECORDED if "ranks," not in scene}
    assert len(shared) >= 40
    assert sum(row["source"].startswith("SimGrid") for row in RECORDED.values()) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_shared_links(name: str) -> None:
    for scene, case in scenes(CASES, name):
        told = exported(scene, native=case.native)
        known = [RECORDED[scene.name, number] for number in range(len(scene.launches))]
        assert {row["digest"] for row in known} == {digest(told)}, "another scene: ask again"
        wanted = [float(row["wanted_s"]) for row in known]
        for row in of_scene(scene, case, digest(told), wanted, ""):
            assert row.message_s is not None
            assert not row.unexplained
            if not case.message_differs:
                assert row.message_s == pytest.approx(row.wanted_s, rel=WITHIN)


def test_simgrid_shares_by_latency_as_the_explanation_says() -> None:
    """A flow over three links of 10 GB/s meets one over one link, whose latency is a third.

    The short one has its link to itself until the long one's latency is over, and three quarters of
    it until one of them ends. Here it would have a half.
    """
    ratios = []
    for scene, _ in scenes(CASES, "SimGrid's own latency, unlike"):
        for number, launch in enumerate(scene.launches[1:], 1):
            alpha_s, nbytes = float(launch.way.stages[0].latency_s[0]), launch.way.schedule.nbytes
            by_hand = 3 * alpha_s + (nbytes - 2 * alpha_s * 1e10) / 0.75e10
            ratios.append(by_hand / float(RECORDED[scene.name, number]["wanted_s"]))
    assert sum(ratio == pytest.approx(1, rel=WITHIN) for ratio in ratios) >= 2, ratios


def capped_as_it_starts(scene: Scene, launch: Launch) -> Launch:
    """The same flow, for good no quicker than its narrowest link when it starts."""
    then = [scene.machine, *(machine for at_s, machine in scene.changes if at_s <= launch.at_s)][-1]
    route = tuple(launch.way.stages[0].edges.arcs.tolist())
    cap_Bps = float(then.topology.arcs.bandwidth_Bps[list(route)].min())
    return replace(launch, way=flow(route, launch.way.schedule.nbytes, cap_Bps))


def test_simgrid_caps_a_flow_as_the_explanation_says() -> None:
    """With the same cap ours is SimGrid's answer: so nothing else differs."""
    for scene, _ in scenes(CASES, "a link slows down and recovers"):
        capped = [capped_as_it_starts(scene, launch) for launch in scene.launches]
        ends = play("message", replace(scene, launches=tuple(capped)))
        for number, (launch, end_s) in enumerate(zip(scene.launches, ends, strict=True)):
            wanted = float(RECORDED[scene.name, number]["wanted_s"])
            assert end_s - launch.at_s == pytest.approx(wanted, rel=WITHIN)


@pytest.mark.parametrize("cell", list(cells()), ids=lambda c: f"{c.table}-{c.ranks}-{c.nbytes}")
def test_tables_of_other_simulators(cell: Cell) -> None:
    scene = cell.make()
    wanted = float(RECORDED[scene.name, 0]["wanted_s"])
    row = of_cell(cell, scene, "", wanted, "")
    assert row.closed_form_s == pytest.approx(wanted, rel=1e-9)
    assert row.flow_s == pytest.approx(wanted, rel=1e-9)
    if row.message_s is not None:
        assert row.message_s == pytest.approx(wanted, rel=1e-9)
