"""A scene in the words of `simgrid_runner`: links, edges with their sends, who waits for whom.

Written from the meaning of a schedule (`perfmodel.collectives.dependencies`), not from a simulator
of ours, so that SimGrid's answer is an independent one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import numpy as np

from oracle.scenes import Launch, Scene, Stream
from perfmodel.collectives.dependencies import Messages, messages, unroll
from perfmodel.library.lowering.lowered import LoweredCollective


def exported(scene: Scene, *, native: bool = False) -> dict[str, Any]:
    """Describe a scene for SimGrid.

    Parameters
    ----------
    scene : Scene
        Of whole-byte sends (no protocol that adds bytes) and no lost links.
    native : bool
        Leave latencies to SimGrid's links; otherwise each send is followed by a sleep.
    """
    arcs = scene.machine.topology.arcs
    late = arcs.latency_s if native else np.zeros(len(arcs))
    edges: list[dict[str, Any]] = []
    followers: list[list[int]] = []
    for launch in scene.launches:
        _add(launch, edges, followers, native=native)
    for stream in scene.streams:
        edges.append(_background(stream))
        followers.append([])
    return {
        "links": [
            {"bandwidth_Bps": float(speed), "latency_s": float(delay)}
            for speed, delay in zip(arcs.bandwidth_Bps, late, strict=True)
        ],
        "edges": edges,
        "followers": followers,
        "changes": _changes(scene),
    }


ENDLESS_BYTES = 10**15
"""For a stream without an end: more than any scene here waits for."""


def _background(stream: Stream) -> dict[str, Any]:
    return {
        "route": list(stream.route),
        "cap_Bps": stream.cap_Bps if np.isfinite(stream.cap_Bps) else None,
        "latency_s": 0.0,
        "credits": 1,
        "start_s": stream.at_s,
        "sends": [[int(min(stream.nbytes, ENDLESS_BYTES)), 0]],
    }


def digest(scene: dict[str, Any]) -> str:
    """Short name of what a scene says, to see that a recorded answer is still about it.

    Nine digits of each number count: the last bit of a power depends on the processor's vector
    units.
    """
    return hashlib.blake2b(json.dumps(_rounded(scene)).encode(), digest_size=6).hexdigest()


def _rounded(value: Any) -> Any:
    """Copy of a document of lists and mappings, its floats rounded to nine digits."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value


def short_digest(scene: Scene) -> str:
    """Like `digest`, of a large scene without changes, whose sends need not be unrolled for it."""
    seen = hashlib.blake2b(digest_size=6)
    arcs = scene.machine.topology.arcs
    for launch in scene.launches:
        way = launch.way
        seen.update(repr((way.schedule.algorithm, way.schedule.nbytes, way.credits)).encode())
        for stage in way.stages:
            used = stage.edges.arcs
            for array in (stage.edges.src, stage.edges.dst, stage.edges.pointers, used):
                seen.update(array.astype(np.int64).tobytes())
            for numbers in (arcs.bandwidth_Bps[used], arcs.latency_s[used], stage.latency_s):
                seen.update(numbers.tobytes())
    return seen.hexdigest()


def edges_of(scene: Scene) -> list[int]:
    """How many of the exported edges belong to each launch, in order."""
    return [sum(len(s.phases[0].src) for s in launch.way.stages) for launch in scene.launches]


def _add(
    launch: Launch, edges: list[dict[str, Any]], followers: list[list[int]], *, native: bool
) -> None:
    """Append the edges of a collective, their sends, and the sends that wait for each of them."""
    way, sends = launch.way, messages(unroll(launch.way.schedule))
    queues = _queues(way, sends)
    number = _numbered(queues, len(followers))
    waits = _waits(way, sends)
    places = [(stage, place) for stage in way.stages for place in range(len(stage.edges))]
    for queue, (stage, place) in zip(queues, places, strict=True):
        first, last = stage.edges.pointers[place : place + 2]
        cap_Bps = float(stage.cap_Bps[place])
        edges.append(
            {
                "route": stage.edges.arcs[first:last].tolist(),
                "cap_Bps": cap_Bps if np.isfinite(cap_Bps) else None,
                "latency_s": 0.0 if native else float(stage.latency_s[place]),
                "credits": way.credits,
                "start_s": launch.at_s + way.launch_s,
                "sends": [[int(sends.nbytes[send]), len(waits[send])] for send in queue],
            }
        )
    mine: list[list[int]] = [[] for _ in number]
    for send, others in enumerate(waits):
        for other in others:
            mine[number[other] - len(followers)].append(number[send])
    followers += mine


def _queues(way: LoweredCollective, sends: Messages) -> list[list[int]]:
    """Sends of each edge in order, edge after edge, stage after stage."""
    stage_of_round = _stage_of_round(way)
    place: dict[tuple[int, int, int, int], int] = {}
    for stage, part in enumerate(way.stages):
        phase = part.phases[0]
        for key in zip(phase.channel, phase.src, phase.dst, strict=True):
            place[stage, int(key[0]), int(key[1]), int(key[2])] = len(place)
    queues: list[list[int]] = [[] for _ in place]
    ends = zip(sends.round, sends.channel, sends.src, sends.dst, strict=True)
    for send, (turn, channel, src, dst) in enumerate(ends):
        queues[place[stage_of_round[turn], int(channel), int(src), int(dst)]].append(send)
    return queues


def _stage_of_round(way: LoweredCollective) -> list[int]:
    return [
        stage
        for stage, part in enumerate(way.stages)
        for _ in range(sum(phase.repeat for phase in part.phases))
    ]


def _numbered(queues: list[list[int]], first: int) -> list[int]:
    """Number of each send when they are counted edge after edge."""
    number = [0] * sum(len(queue) for queue in queues)
    for place, send in enumerate(itertools.chain.from_iterable(queues), first):
        number[send] = place
    return number


def _waits(way: LoweredCollective, sends: Messages) -> list[list[int]]:
    """Sends that must have landed before each: its data, and its rank's earlier stages."""
    if len(way.stages) == 1:
        return list(sends.after)
    stage_of_round = _stage_of_round(way)
    at: dict[tuple[int, int], list[int]] = {}
    ends = list(zip(sends.channel.tolist(), sends.src.tolist(), sends.dst.tolist(), strict=True))
    for send, (channel, src, dst) in enumerate(ends):
        at.setdefault((channel, src), []).append(send)
        at.setdefault((channel, dst), []).append(send)
    stages = [stage_of_round[turn] for turn in sends.round.tolist()]
    found = []
    begun: set[tuple[int, int, int, int]] = set()
    for send, (channel, src, dst) in enumerate(ends):
        waits = set(sends.after[send])
        if (stages[send], channel, src, dst) not in begun:  # later ones follow it on their edge
            begun.add((stages[send], channel, src, dst))
            waits |= {s for s in at[channel, src] if stages[s] < stages[send]}
        found.append(sorted(waits))
    return found


def _changes(scene: Scene) -> list[list[float]]:
    """When which link gets which bandwidth."""
    now = scene.machine.topology.arcs.bandwidth_Bps
    found: list[list[float]] = []
    for at_s, machine in sorted(scene.changes, key=lambda change: change[0]):
        after = machine.topology.arcs.bandwidth_Bps
        found += [[at_s, int(arc), float(after[arc])] for arc in np.flatnonzero(after != now)]
        now = after
    return found
