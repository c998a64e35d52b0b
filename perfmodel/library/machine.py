"""The machine that executors see: a topology and a library whose numbers fit its hardware."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from perfmodel.arrays import RankGroup
from perfmodel.errors import refuse_if
from perfmodel.library.channels import Rings, rings_over
from perfmodel.library.corrections import Corrections
from perfmodel.library.model import CommLibrary, library_on, load_library
from perfmodel.library.settings import MOST_CHANNELS, LibrarySettings
from perfmodel.library.transport import apply_settings, with_socket_rates
from perfmodel.memo import T, once
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router


def make_machine(
    topology: Topology,
    library: CommLibrary,
    *,
    settings: LibrarySettings | None = None,
    channels: int | None = None,
) -> Machine:
    """Put a library on a topology.

    Parameters
    ----------
    topology : Topology
        The settings decide which of its paths the library uses.
    library : CommLibrary
        As its file says; its numbers become those of this generation of GPU and kind of network.
        Accelerators without NCCL have the rings of their makers' libraries in its place.
    settings : LibrarySettings, optional
    channels : int, optional
        Use no more than this many parallel rings; nor more than the library or the user allow.

    Raises
    ------
    InputError
        NCCL's version or variables where accelerators have no NCCL.
    """
    chosen = settings or LibrarySettings()
    if library.nccl_tuner and topology.gpu.accelerator:
        stated = chosen.version or next(iter(chosen.env), "")
        allowed = f"nothing of NCCL on {topology.gpu.name}, which its maker's library joins"
        refuse_if(bool(stated), "library", stated, allowed)
        library = load_library("rings")
    if library.nccl_tuner and topology.hosts > 1:
        chosen = chosen.on_network(topology.network)
    used = apply_settings(topology, chosen)
    bounds = (channels, library.channels, chosen.count(*MOST_CHANNELS))
    most = min((bound for bound in bounds if bound), default=None)
    return Machine(used, with_socket_rates(library_on(library, used), used, chosen), most, chosen)


def observed_time_s(machine: Machine, time_s: float, measured: Corrections | None = None) -> float:
    """Time of a collective as whoever ran it saw it; seconds.

    One process that drives all GPUs of a host starts the collective on one after the other, which
    takes its time when they follow each other; a script that waits for each adds its start.
    `measured`: factors in place of the machine's own.
    """
    library, settings, measured = machine.library, machine.settings, measured or machine.measured
    if settings.one_process:
        time_s = max(time_s, library.issue * measured.issue * machine.topology.gpus_per_host)
    return time_s + (library.awaited * measured.awaited if settings.awaited else 0.0)


MOST_RECENT = 32
"""Schedules and phases of each kind that machines share; those made first go first."""


@dataclass(frozen=True, eq=False)
class Machine:
    """What executors see: hardware and the library that drives it."""

    topology: Topology
    library: CommLibrary
    channels: int | None = None
    """Use no more than this many parallel rings."""
    settings: LibrarySettings = field(default_factory=LibrarySettings)
    """Version and environment of the library."""
    measured: Corrections = field(default_factory=Corrections)
    """From a profile: factors on the costs of the library."""
    fitted: bool = False
    """Whether its numbers were fitted to measured times of collectives alone, as
    `simulate.uncontended` has them: rates of ranks and of chunk sizes, which sockets lack."""
    decides_on: Machine | None = None
    """The machine by whose links NCCL searches its channels, under like settings; default: this."""
    shared: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """What machines have in common that differ in the numbers of links and library only; the key
    says all else that it depends on."""
    _routed: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)
    """What depends on the topology, its routes and the settings only."""
    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def router(self) -> Router:
        """Routes of the topology, made when somebody asks: most variations of a machine do not."""
        return Router(self.topology)

    def rings(self, group: RankGroup) -> Rings:
        """Rings over a group of ranks; laid once."""
        lay = partial(rings_over, self.topology, self.router, group, at_most=self.channels)
        return once(self._routed, ("rings", group), lay)

    def laid(self, key: Hashable, find: Callable[[], T]) -> T:
        """What `find` returns for a key; found once for all numbers of the library."""
        return once(self._routed, ("laid", key), find)

    def recent(self, kind: str, made_of: Hashable, key: Hashable, find: Callable[[], T]) -> T:
        """What `find` makes of some object by a key; found once for all alike machines.

        `kind`: of what is made, of which the last `MOST_RECENT` are kept.
        """
        things = self.shared.setdefault(kind, {})
        if (made_of, key) not in things:
            while len(things) >= MOST_RECENT:
                del things[next(iter(things))]
        return once(things, (made_of, key), find)

    def kept_edges(self, key: Hashable, count: int, most: int, find: Callable[[], T]) -> T:
        """The edges that `find` lays for a key, which names their ends; laid once.

        `count`: how many they are. They are kept as long as these and all before are `most`.
        """
        if key in self._routed:
            edges: T = self._routed[key]
            return edges
        laid, total = find(), self._routed.get("kept edges", 0) + count
        if total <= most:
            self._routed[key], self._routed["kept edges"] = laid, total
        return laid

    def cached(self, key: Hashable, find: Callable[[], T]) -> T:
        """What `find` returns for a key; found once."""
        return once(self._cache, key, find)

    def with_corrections(self, measured: Corrections, topology: Topology | None = None) -> Machine:
        """The same machine as it was measured.

        Only its links' bandwidths may differ in `topology`. What the library chose and laid by its
        own numbers stays, and is looked up once for all of them.
        """
        machine = replace(self, topology=topology or self.topology, measured=measured)
        for name in ("_routed", "_cache"):
            object.__setattr__(machine, name, getattr(self, name))
        return machine

    def with_library(
        self, library: CommLibrary, settings: LibrarySettings | None = None
    ) -> Machine:
        """The same machine under other numbers of its library: what is routed stays.

        `settings`: those that differ in NCCL_ALGO and NCCL_PROTO only.
        """
        machine = replace(self, library=library, settings=settings or self.settings)
        for name in ("router", "_routed"):
            object.__setattr__(machine, name, getattr(self, name))
        return machine

    def differs_in_corrections_only(self, other: Machine) -> bool:
        """Whether both are `with_corrections` from one machine and have the same links."""
        return self._cache is other._cache and self.topology.arcs is other.topology.arcs
