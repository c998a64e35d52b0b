"""Single transfers on shared links: each takes its max-min fair share for as long as it lasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simpy

from perfmodel.simulate.fairness import max_min_few

LAST_IN_INSTANT = 2
"""SimPy priority after NORMAL (1): everything that starts at one time shares from the start."""


@dataclass(slots=True, eq=False)
class Transfer:
    """Bytes on their way over a route."""

    route: tuple[int, ...]
    cap_Bps: float
    sent: Callable[[], None]
    left_bytes: float
    since_s: float
    rate_Bps: float = 0.0
    version: int = 0


@dataclass
class Wires:
    """All transfers on the move. Rates are solved again only where something changed."""

    env: simpy.Environment
    bandwidth_Bps: Sequence[float]
    _on_arc: dict[int, list[Transfer]] = field(default_factory=dict)
    _touched: list[Transfer] = field(default_factory=list)

    def send(
        self, route: tuple[int, ...], nbytes: float, cap_Bps: float, sent: Callable[[], None]
    ) -> None:
        """Put bytes on a route; `sent` is called when the last of them has left the source."""
        transfer = Transfer(route, cap_Bps, sent, nbytes, self.env.now)
        alone = True
        for arc in route:
            others = self._on_arc.setdefault(arc, [])
            alone = alone and not others
            others.append(transfer)
        if alone:
            self._set(transfer, min(cap_Bps, *(self.bandwidth_Bps[arc] for arc in route)))
        else:
            self._later(transfer)

    def _later(self, transfer: Transfer) -> None:
        if not self._touched:
            event = self.env.event()
            event._ok, event._value = True, None
            event.callbacks.append(lambda _: self._resolve())
            self.env.schedule(event, priority=LAST_IN_INSTANT)  # type: ignore[arg-type]
        self._touched.append(transfer)

    def _resolve(self) -> None:
        """Solve the connected components of what changed in this instant."""
        touched, self._touched = self._touched, []
        live: dict[int, Transfer] = {}
        arcs = [arc for transfer in touched for arc in transfer.route]
        seen = set(arcs)
        while arcs:
            for transfer in self._on_arc[arcs.pop()]:
                if id(transfer) not in live:
                    live[id(transfer)] = transfer
                    fresh = [arc for arc in transfer.route if arc not in seen]
                    seen.update(fresh)
                    arcs += fresh
        moving = list(live.values())
        routes, caps = [t.route for t in moving], [t.cap_Bps for t in moving]
        rates = max_min_few(self.bandwidth_Bps, routes, caps)
        for transfer, rate in zip(moving, rates, strict=True):
            if rate != transfer.rate_Bps:
                self._set(transfer, rate)

    def _set(self, transfer: Transfer, rate_Bps: float) -> None:
        now = self.env.now
        transfer.left_bytes -= transfer.rate_Bps * (now - transfer.since_s)
        transfer.since_s, transfer.rate_Bps = now, rate_Bps
        transfer.version += 1
        version = transfer.version
        end = self.env.timeout(max(0.0, transfer.left_bytes) / rate_Bps)
        end.callbacks.append(lambda _: self._finish(transfer, version))

    def _finish(self, transfer: Transfer, version: int) -> None:
        if version != transfer.version:
            return
        for arc in transfer.route:
            others = self._on_arc[arc]
            others.remove(transfer)
            if others:
                self._later(others[0])
        transfer.sent()
