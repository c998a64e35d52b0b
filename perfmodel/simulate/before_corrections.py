"""What is the same of collectives on machines that differ in measured corrections only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.arrays import FloatArray, RankGroup
from perfmodel.library.lowering.lower import Algorithm, lower_without_corrections
from perfmodel.library.lowering.lowered import (
    Crossings,
    LinkBytes,
    LoweredCollective,
    Stage,
    add_traffic,
    alike_bytes,
    count_crossings,
)
from perfmodel.library.machine import Machine
from perfmodel.simulate.sharing.duty_cycle import StageRates, UseOrders, tells_apart

CollectiveKey = tuple[str, int, RankGroup, int, Algorithm | None]
"""Operation, bytes, group, root and algorithm of a collective."""


@dataclass
class UncorrectedCollectives:
    """What machines have in common that differ in measured corrections only.

    Parameters
    ----------
    machine : Machine
        One of them.
    """

    machine: Machine
    rates: StageRates = field(init=False)
    _link_bytes: dict[LoweredCollective, LinkBytes] = field(default_factory=dict)
    _crossed: dict[tuple[int, int], tuple[Stage, list[Crossings]]] = field(default_factory=dict)
    _lowered: dict[CollectiveKey, tuple[LoweredCollective, ...]] = field(default_factory=dict)
    laid: dict[Callable[[], Any], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        capacity_Bps, own = self.machine.topology.arcs.bandwidth_Bps, UseOrders()
        used_at, orders = self.machine.shared.setdefault("uses of links", (capacity_Bps, own))
        if used_at is not capacity_Bps:
            orders = UseOrders(orders if tells_apart(used_at, capacity_Bps) else None)
        self.rates = StageRates(capacity_Bps, orders)

    def lower(self, key: CollectiveKey) -> tuple[LoweredCollective, ...]:
        """Return the candidates of the library for a collective, without corrections."""
        if key not in self._lowered:
            op, nbytes, group, root, algorithm = key
            self._lowered[key] = lower_without_corrections(
                self.machine, op, nbytes, group, root=root, algorithm=algorithm
            )
        return self._lowered[key]

    def forget(self) -> None:
        """Drop what is cached of each collective."""
        for cache in (self._link_bytes, self._crossed, self._lowered):
            cache.clear()

    def link_bytes(self, lowered: LoweredCollective) -> LinkBytes:
        """Bytes of a collective on the links that it uses."""
        if lowered not in self._link_bytes:
            wire_bytes, payload_bytes = self.traffic(lowered), self.traffic(lowered, payload=True)
            links = np.flatnonzero(wire_bytes)
            on_links = LinkBytes(links, wire_bytes[links], payload_bytes[links])
            self._link_bytes[lowered] = on_links
        return self._link_bytes[lowered]

    def traffic(self, lowered: LoweredCollective, *, payload: bool = False) -> FloatArray:
        """Bytes of a collective on each link: on the wire, or of payload; shape (links,)."""
        total = np.zeros(len(self.machine.topology.arcs))
        each = alike_bytes(lowered)
        if each is None:
            add_traffic(total, lowered, payload=payload)
            return total
        for load, links, crossings in self._crossings(lowered.stages[0]):
            total[links] += (each if payload else each * load * lowered.wire_factor) * crossings
        return total

    def _crossings(self, stage: Stage) -> list[Crossings]:
        """How often edges cross the links that they use, those of one load together."""
        key = id(stage.edges), id(stage.load)
        if key not in self._crossed:  # the entry holds both, so that their ids stay unique
            self._crossed[key] = stage, count_crossings(stage)
        return self._crossed[key][1]
