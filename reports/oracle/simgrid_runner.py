"""Runs scenes on SimGrid. Knows nothing of perfmodel: JSON lines in on stdin, JSON lines out.

SimGrid's Python binding belongs to one interpreter (Debian: the system's), which need not be the
one that perfmodel is installed in; so this file stands alone and is run by whichever has it.
SimGrid allows one simulation per process: each scene is run by a child of this process.

A scene is ``{"links": [{"bandwidth_Bps", "latency_s"}], "edges": [{"route": [link numbers],
"cap_Bps" or null, "latency_s", "credits", "start_s", "sends": [[nbytes, waits], ...]}],
"followers": [...], "changes": [[at_s, link, bandwidth_Bps], ...]}``. Sends are numbered edge after
edge; ``waits`` is how many sends must have landed before this one starts, ``followers[n]`` are the
numbers of those that wait for send n. The answer is ``{"ends_s": [...]}``: when the last send of
each edge landed.

The model is SimGrid's CM02: fluid flows that share links max-min fairly. Cross-traffic, TCP's
window and all correction factors are off.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

OPTIONS = (
    "network/model:CM02",
    "network/crosstraffic:0",
    "network/TCP-gamma:0",
    "network/weight-S:0",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "surf/precision:1e-13",
    "maxmin/precision:1e-9",
)
"""Plain max-min sharing. The precisions are SimGrid's own, in seconds and in bytes per second."""


def version() -> str:
    """Version of SimGrid, as it says itself."""
    import simgrid

    return str(simgrid.simgrid_version)


class _Edge:
    """One edge of the scene: an actor that puts its sends on the wire, one after the other."""

    def __init__(self, simgrid: Any, scene: dict[str, Any], number: int, first: int) -> None:
        self.simgrid, self.number, self.first = simgrid, number, first
        given = scene["edges"][number]
        self.latency_s, self.credits, self.start_s = (
            given["latency_s"],
            given["credits"],
            given["start_s"],
        )
        self.sends: list[list[int]] = given["sends"]
        self.gate = simgrid.Semaphore(0)  # opened when the head of the queue has what it waits for
        self.credit = simgrid.Semaphore(self.credits)
        self.waits_for: int | None = None
        self.end_s = 0.0


def run(scene: dict[str, Any]) -> dict[str, list[float]]:
    """Simulate one scene; SimGrid allows only one per process."""
    import simgrid

    engine = simgrid.Engine(["oracle", "--log=root.thres:error", *(f"--cfg={o}" for o in OPTIONS)])
    zone = simgrid.NetZone.create_full_zone("zone")
    links = [
        zone.create_link(f"link{i}", link["bandwidth_Bps"]).set_latency(link["latency_s"]).seal()
        for i, link in enumerate(scene["links"])
    ]
    ends = [_ends(simgrid, zone, links, edge, i) for i, edge in enumerate(scene["edges"])]
    clock = zone.create_host("clock", 1e9)
    zone.seal()
    edges = _edges(simgrid, scene)
    owner = [edge.number for edge in edges for _ in edge.sends]
    waiting = [waits for edge in edges for _, waits in edge.sends]
    followers = scene["followers"]

    def landed(send: int) -> None:
        edges[owner[send]].end_s = simgrid.Engine.clock
        for follower in followers[send]:
            waiting[follower] -= 1
            edge = edges[owner[follower]]
            if not waiting[follower] and edge.waits_for == follower:
                edge.waits_for = None
                edge.gate.release()

    for edge, (src, dst) in zip(edges, ends, strict=True):
        simgrid.Actor.create(f"edge{edge.number}", src, _sender(edge, src, dst, waiting, landed))
    for at_s, link, bandwidth_Bps in scene["changes"]:
        simgrid.Actor.create("change", clock, _change(simgrid, at_s, links[link], bandwidth_Bps))
    engine.run()
    return {"ends_s": [edge.end_s for edge in edges]}


def _edges(simgrid: Any, scene: dict[str, Any]) -> list[_Edge]:
    edges, first = [], 0
    for number, given in enumerate(scene["edges"]):
        edges.append(_Edge(simgrid, scene, number, first))
        first += len(given["sends"])
    return edges


def _ends(
    simgrid: Any, zone: Any, links: list[Any], edge: dict[str, Any], number: int
) -> tuple[Any, Any]:
    """A pair of hosts of its own for each edge, so that any route can be given.

    A cap is a link that nobody else crosses (SimGrid 3.32 takes no rate for a `sendto`).
    """
    src, dst = (zone.create_host(f"{end}{number}", 1e9) for end in ("src", "dst"))
    crossed = [links[link] for link in edge["route"]]
    if edge["cap_Bps"] is not None:
        crossed.append(zone.create_link(f"cap{number}", edge["cap_Bps"]).seal())
    route = [simgrid.LinkInRoute(link) for link in crossed]
    zone.add_route(src.netpoint, dst.netpoint, None, None, route, False)
    return src, dst


def _sender(
    edge: _Edge, src: Any, dst: Any, waiting: list[int], landed: Callable[[int], None]
) -> Callable[[], None]:
    simgrid = edge.simgrid

    def deliver(send: int) -> Callable[[], None]:
        def body() -> None:
            simgrid.this_actor.sleep_for(edge.latency_s)
            edge.credit.release()
            landed(send)

        return body

    def body() -> None:
        if edge.start_s:
            simgrid.this_actor.sleep_until(edge.start_s)
        for send, (nbytes, _) in enumerate(edge.sends, edge.first):
            if waiting[send]:
                edge.waits_for = send
                edge.gate.acquire()
            if edge.credits > 1:
                edge.credit.acquire()
            comm = simgrid.Comm.sendto_init(src, dst).set_payload_size(nbytes)
            comm.wait()
            if edge.credits > 1:
                simgrid.Actor.create("delivery", dst, deliver(send))
                continue
            if edge.latency_s:
                simgrid.this_actor.sleep_for(edge.latency_s)
            landed(send)

    return body


def _change(simgrid: Any, at_s: float, link: Any, bandwidth_Bps: float) -> Callable[[], None]:
    def body() -> None:
        simgrid.this_actor.sleep_until(at_s)
        link.set_bandwidth(bandwidth_Bps)

    return body


def _child(text: str) -> None:
    print(json.dumps(run(json.loads(text))), flush=True)  # noqa: T201  (this is the output)


def main() -> int:
    """Answer scenes until stdin ends; exit code 2 without SimGrid."""
    try:
        print(json.dumps({"simgrid": version()}), flush=True)  # noqa: T201
    except ImportError as error:
        print(f"{sys.executable}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    for line in sys.stdin:
        child = multiprocessing.get_context("fork").Process(target=_child, args=(line,))
        child.start()
        child.join()
        if child.exitcode:
            print(json.dumps({"error": f"exit code {child.exitcode}"}), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
