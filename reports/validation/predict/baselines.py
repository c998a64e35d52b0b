"""Two baselines to compare predictions with: alpha-beta, and NCCL's own cost formula."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from perfmodel.collectives.catalog import bus_factor
from perfmodel.files import FileModel, Seconds, load_document
from perfmodel.library.nccl.communicator import system_of
from perfmodel.library.nccl.dispatch import predictions
from perfmodel.library.settings import LibrarySettings
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import NodeSpec, pairs


class Constants(FileModel):
    """Numbers of the alpha-beta baseline (``baselines.yaml``)."""

    alpha: Seconds
    alpha_source: str


@lru_cache(maxsize=1)
def constants() -> Constants:
    """Read the shipped constants."""
    return load_document(Constants, Path(__file__).with_suffix(".yaml"))


def alpha_beta_s(
    node: NodeSpec, topology: Topology, op: str, sizes: Sequence[int]
) -> tuple[float, ...]:
    """Times of a ring: steps alpha + S busfactor / B (Hockney; Thakur, Rabenseifner, Gropp 2005).

    B is the nominal rate of the slowest part of a ring: all NVLinks of a GPU together (else its
    PCIe link), and all NICs of a host together.

    Parameters
    ----------
    node : NodeSpec
        Template of a host, for the nominal rates.
    topology : Topology
    op : str
    sizes : sequence of int
        Bytes, as nccl-tests counts them.
    """
    ranks = len(topology.ranks)
    steps = (2 if op == "all_reduce" else 1) * (ranks - 1)
    rate_Bps = nominal_Bps(node, topology)
    alpha_s = constants().alpha
    factor = bus_factor(op, ranks)
    return tuple(steps * alpha_s + nbytes * factor / rate_Bps for nbytes in sizes)


def nominal_Bps(node: NodeSpec, topology: Topology) -> float:
    """Rate of the slowest part of a ring by datasheets; bytes per second."""
    rates = []
    if topology.gpus_per_host > 1:
        rates.append(_between_gpus_Bps(node))
    if topology.hosts > 1:
        ports = [
            d.port for d in node.nodes if d.kind == "nic" and d.port for _ in expand_pattern(d.id)
        ]
        rates.append(sum(node.links[port].bandwidth for port in ports))
    return min(rates)


def _between_gpus_Bps(node: NodeSpec) -> float:
    gpus = {
        name for device in node.nodes if device.kind == "gpu" for name in expand_pattern(device.id)
    }
    first = min(gpus)
    best = {"nvlink": 0.0, "pcie": 0.0, "memory": 0.0}
    for edge in node.edges:
        link = node.links[edge.link]
        lanes = edge.lanes * sum(first in pair for pair in pairs(edge))
        if lanes and link.kind in best:
            best[link.kind] += lanes * link.bandwidth
    return best["nvlink"] or best["pcie"] or best["memory"] or 1e10


def tuner_s(
    topology: Topology, settings: LibrarySettings, op: str, sizes: Sequence[int]
) -> tuple[float, ...]:
    """Times of NCCL's own cost formula for what it would choose.

    Raises
    ------
    InputError
        NCCL's tuner has no formula for this collective.
    """
    group = range(len(topology.ranks))
    system = system_of(topology, Router(topology), group, settings)
    return tuple(predictions(system, op, nbytes, settings)[0].time_s for nbytes in sizes)
