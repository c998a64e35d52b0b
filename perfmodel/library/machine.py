"""The machine that executors see: a topology and a library whose numbers fit its hardware."""

from __future__ import annotations

from perfmodel.library.carry import Machine
from perfmodel.library.model import Library, library_on
from perfmodel.library.settings import Settings
from perfmodel.topology.model import Topology


def machine_on(
    topology: Topology,
    library: Library,
    *,
    settings: Settings | None = None,
    channels: int | None = None,
) -> Machine:
    """Put a library on a topology.

    Parameters
    ----------
    topology : Topology
    library : Library
        As its file says; its numbers become those of this generation of GPU and kind of network.
    settings : Settings, optional
    channels : int, optional
        Use no more than this many parallel rings.
    """
    chosen = settings or Settings()
    return Machine(topology, library_on(library, topology), channels, chosen)
