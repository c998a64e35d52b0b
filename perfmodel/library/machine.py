"""The machine that executors see: a topology and a library whose numbers fit its hardware."""

from __future__ import annotations

from perfmodel.library.carry import Machine
from perfmodel.library.measured import Measured
from perfmodel.library.model import Library, library_on
from perfmodel.library.settings import Settings
from perfmodel.library.transport import told
from perfmodel.topology.model import Topology

MOST_CHANNELS = ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")
"""Variables that bound the channels of NCCL, the newest name first."""


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
        The settings decide which of its ways the library takes.
    library : Library
        As its file says; its numbers become those of this generation of GPU and kind of network.
    settings : Settings, optional
    channels : int, optional
        Use no more than this many parallel rings; nor more than the library or the user allow.
    """
    chosen = settings or Settings()
    used = told(topology, chosen)
    bounds = (channels, library.channels, chosen.count(*MOST_CHANNELS))
    most = min((bound for bound in bounds if bound), default=None)
    return Machine(used, library_on(library, used), most, chosen)


def observed_s(machine: Machine, time_s: float, measured: Measured | None = None) -> float:
    """Time of a collective as whoever ran it saw it; seconds.

    One process that drives all GPUs of a host starts the collective on one after the other, which
    takes its time when they follow each other; a script that waits for each adds its start.
    `measured`: factors in place of the machine's own.
    """
    library, settings, measured = machine.library, machine.settings, measured or machine.measured
    if settings.one_process:
        issue_s = library.issue * measured.issue
        time_s = max(time_s, issue_s * machine.topology.gpus_per_host)
    return time_s + (library.awaited * measured.awaited if settings.awaited else 0.0)
