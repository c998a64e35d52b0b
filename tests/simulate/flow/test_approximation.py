"""Where a fluid is an approximation it says so, and is no further off than it says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import simpy

sys.path.insert(0, str(Path(__file__).parents[3] / "reports"))

from oracle.agreement import Compared, at_both, compare
from oracle.family import scenes
from oracle.must_agree import MUST_AGREE
from oracle.need_not import NEED_NOT
from oracle.scenes import Scene

from perfmodel.simulate.flow.approximation import NOTES
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.uncontended import UncontendedTimer

EXACT = 1e-6
STATED = {
    "shared": ("ring crosses a link twice",),
    "staged": ("several stages",),
    "met": ("two jobs, unlike rings", "bursts against a collective", "stream beside a collective"),
    "changed": ("link slows down in mid-transfer", "cable lost in mid-transfer"),
}


@cache
def played(family: str) -> list[tuple[Scene, Compared]]:
    found = scenes(NEED_NOT, family)
    return [(scene, compare(scene, at_both(scene))) for scene in found]


def noted(scene: Scene) -> set[str]:
    env = simpy.Environment()
    network = FlowNetwork(env, UncontendedTimer(scene.machine))

    def start(at_s: float, begin: Callable[[], object]) -> Iterator[simpy.Event]:
        yield env.timeout(at_s)
        begin()

    for launch in scene.launches:
        env.process(start(launch.at_s, lambda way=launch.way: network.launch([way])))
    for stream in scene.streams:
        args = (stream.route, stream.cap_Bps, stream.nbytes)
        env.process(start(stream.at_s, lambda args=args: network.stream(*args)))
    for at_s, machine in scene.changes:
        env.process(start(at_s, lambda machine=machine: network.become(machine)))
    env.run()
    return {note.why for note in network.notes}


@pytest.mark.slow
@pytest.mark.parametrize("family", NEED_NOT)
def test_whatever_is_off_is_flagged(family: str) -> None:
    for scene, row in played(family):
        if abs(row.difference) > EXACT:
            assert noted(scene), scene.name


@pytest.mark.parametrize("family", [name for name in MUST_AGREE if not name.startswith("speed")])
def test_what_must_be_exact_is_not(family: str) -> None:
    for scene in scenes(MUST_AGREE, family):
        assert not noted(scene), scene.name


@pytest.mark.parametrize("why", STATED)
def test_the_stated_differences_hold(why: str) -> None:
    rows = [row for family in STATED[why] for _, row in played(family)]
    off = np.abs([row.difference for row in rows])
    note = NOTES[why]  # type: ignore[index]
    assert np.median(off) <= note.median
    assert np.quantile(off, 0.9) <= note.p90
    assert off.max() <= note.worst
    assert note.worst < off.max() + 0.05, "states more than there is"
    assert f"{100 * note.worst:.0f} % at worst" in str(note)
