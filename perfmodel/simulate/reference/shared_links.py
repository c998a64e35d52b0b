"""Links: a process that sends holds those of its path, at its max-min share of each moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import simpy

from perfmodel.arrays import FloatArray
from perfmodel.library.lowering.lowered import Path
from perfmodel.simulate.network import LinkCounters, schedule_last

Process = Generator[simpy.Event, Any, Any]
"""What a SimPy process does."""


@dataclass(slots=True, eq=False)
class Flow:
    """What a process sends over a path; infinitely many bytes where traffic never ends."""

    path: Path
    left_bytes: float
    sender: Any = None
    rate_Bps: float = 0.0
    since_s: float = 0.0


@dataclass(eq=False)
class SharedLinks:
    """All links of a machine: their bandwidths, what they have carried, who holds them."""

    env: simpy.Environment
    bandwidth_Bps: FloatArray
    counted: LinkCounters
    _flows: dict[Flow, None] = field(default_factory=dict)
    _changed: set[int] = field(default_factory=set)

    def carry(self, flow: Flow) -> Process:
        """Hold the links of a flow until its last byte has left."""
        flow.sender, flow.since_s = self.env.active_process, self.env.now
        flow.rate_Bps = 0.0 if flow.path.links else flow.path.cap_Bps
        self._flows[flow] = None
        self._share_anew(flow.path.links)
        while flow.left_bytes > 0.0:
            ends = flow.rate_Bps > 0.0 and flow.left_bytes < inf
            left_s = flow.left_bytes / flow.rate_Bps if ends else inf
            try:
                yield self.env.timeout(left_s) if ends else self.env.event()
                break
            except simpy.Interrupt as interrupt:  # by `_share`: another rate from now on
                self._count(flow, flow.rate_Bps * (self.env.now - flow.since_s))
                flow.rate_Bps = interrupt.cause or 0.0
        self._count(flow, flow.left_bytes)
        del self._flows[flow]
        self._share_anew(flow.path.links)

    def become(self, bandwidth_Bps: FloatArray) -> None:
        """Share other bandwidths from now on."""
        self.count_until_now()
        self.bandwidth_Bps = bandwidth_Bps
        self._share_anew(range(len(bandwidth_Bps)))

    def count_until_now(self) -> None:
        """Count the bytes that are on their way."""
        for flow in self._flows:
            if flow.rate_Bps:
                self._count(flow, flow.rate_Bps * (self.env.now - flow.since_s))

    def _count(self, flow: Flow, nbytes: float) -> None:
        flow.since_s, flow.left_bytes = self.env.now, flow.left_bytes - nbytes
        for link in flow.path.links:
            self.counted.wire_bytes[link] += nbytes
            self.counted.payload_bytes[link] += nbytes / flow.path.wire_share

    def _share_anew(self, links: Iterable[int]) -> None:
        """Share some links once everything else of this instant has happened."""
        if not self._changed:
            schedule_last(self.env, self._share)
        self._changed.update(links)

    def _share(self, _event: simpy.Event) -> None:
        links, self._changed = self._changed, set()
        for flow, rate_Bps in max_min_rates(self.bandwidth_Bps, self._sharing(links)).items():
            if rate_Bps != flow.rate_Bps:
                flow.sender.interrupt(rate_Bps)

    def _sharing(self, links: set[int]) -> list[Flow]:
        """Flows over some links, those that share other links with them, and so on."""
        while True:
            flows = [flow for flow in self._flows if not links.isdisjoint(flow.path.links)]
            reached = links.union(*(flow.path.links for flow in flows))
            if reached == links:
                return flows
            links = reached


def max_min_rates(bandwidth_Bps: FloatArray, flows: Iterable[Flow]) -> dict[Flow, float]:
    """Share links max-min fairly; bytes per second.

    All rates rise together. A flow stops at its cap, or when a link that it crosses is full; the
    others go on (Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2).
    """
    rising, rates_Bps = dict.fromkeys(flows), dict[Flow, float]()
    crossings = Counter(link for flow in rising for link in flow.path.links)
    spare_Bps = {link: float(bandwidth_Bps[link]) for link in crossings}
    while rising:
        share_Bps, full = min((spare_Bps[link] / n, link) for link, n in crossings.items())
        capped = [flow for flow in rising if flow.path.cap_Bps <= share_Bps]
        for flow in capped or [flow for flow in rising if full in flow.path.links]:
            del rising[flow]
            rates_Bps[flow] = min(share_Bps, flow.path.cap_Bps)
            for link in flow.path.links:
                spare_Bps[link] = max(0.0, spare_Bps[link] - rates_Bps[flow])
                crossings[link] -= 1
        crossings += Counter()  # without links that nobody crosses any more
    return rates_Bps
