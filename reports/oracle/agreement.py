"""How far fidelity "flow" is from "message" on one scene, and on many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from oracle.scenes import Scene, least_s, missing, play

FIDELITIES = ("flow", "message")
SAME = 1e-6
"""Differences below this are none."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One scene at both fidelities.

    Parameters
    ----------
    scene, family : str
    message_s, flow_s : float
        How long the collective took on which they differ most.
    last_difference : float
        Of the time when the last collective ended.
    missing : str
        Methods that a network lacks for this scene; the times are then no numbers.
    """

    scene: str
    family: str
    message_s: float
    flow_s: float
    last_difference: float
    missing: str = ""

    @property
    def difference(self) -> float:
        """Flow over message, less one."""
        return self.flow_s / self.message_s - 1


Ends = Mapping[str, tuple[float, ...]]
"""When each launch of a scene ended, by fidelity; seconds."""


def at_both(scene: Scene) -> Ends:
    """Simulate a scene at both fidelities, where both have what it needs."""
    if any(missing(fidelity, scene) for fidelity in FIDELITIES):
        return {}
    return {fidelity: play(fidelity, scene) for fidelity in FIDELITIES}


def compare(scene: Scene, ends: Ends) -> Compared:
    """Compare how long collectives took, not single messages."""
    if not ends:
        lacking = sorted(
            f"{fidelity}: no {name}" for fidelity in FIDELITIES for name in missing(fidelity, scene)
        )
        nan = float("nan")
        return Compared(scene.name, scene.family, nan, nan, nan, "; ".join(lacking))
    flow, message = (np.array(ends[fidelity]) for fidelity in FIDELITIES)
    begun = np.array([launch.at_s for launch in scene.launches])
    measured = np.array([launch.group > 0 for launch in scene.launches])
    took = [(found - begun)[measured] for found in (flow, message)]
    worst = int(np.argmax(np.abs(took[0] / took[1] - 1)))
    first = begun[measured].min()
    last = (flow[measured].max() - first) / (message[measured].max() - first) - 1
    return Compared(
        scene.name, scene.family, float(took[1][worst]), float(took[0][worst]), float(last)
    )


def beaten_bounds(scene: Scene, ends: Ends) -> list[str]:
    """Launches that a simulation ends sooner than it can, in words."""
    return [
        f"{scene.name}, {fidelity}: {(end_s - launch.at_s) * 1e6:.3f} us, "
        f"at least {least * 1e6:.3f} us"
        for fidelity, found in ends.items()
        for launch, end_s, least in zip(scene.launches, found, least_s(scene), strict=True)
        if end_s - launch.at_s < least * (1 - 1e-9)
    ]


@dataclass(frozen=True, slots=True)
class Spread:
    """Absolute differences of many scenes: how many, and their quantiles."""

    count: int
    unlike: int
    """Scenes that differ by more than one in a million."""
    median: float
    p90: float
    worst: float
    worst_scene: str
    mean: float
    """With its sign: above zero where flow is the slower one."""


def spread(rows: Iterable[Compared]) -> Spread | None:
    """Quantiles of those that could be compared; None if there are none."""
    known: Sequence[Compared] = [row for row in rows if not row.missing]
    if not known:
        return None
    signed = np.array([row.difference for row in known])
    size = np.abs(signed)
    return Spread(
        len(known),
        int((size > SAME).sum()),
        float(np.median(size)),
        float(np.quantile(size, 0.9)),
        float(size.max()),
        known[int(np.argmax(size))].scene,
        float(signed.mean()),
    )
