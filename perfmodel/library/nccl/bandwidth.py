"""Bandwidth that NCCL's tuner expects of an algorithm and protocol.

Source of the formulas: NVIDIA/nccl 2.30.7 ``src/graph/tuning.cc`` (ncclTopoTuneModel) and the older
versions that ``tuner.yaml`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfmodel.library.nccl.communicator import System
from perfmodel.library.nccl.constants import GENERATIONS, Constants
from perfmodel.library.nccl.search.graphs import Graph


@dataclass(frozen=True, slots=True)
class Case:
    """One question to the tuner.

    Parameters
    ----------
    system : System
    op : str
        all_reduce, all_gather, reduce_scatter, broadcast or reduce.
    algorithm, protocol : str
    constants : Constants
    """

    system: System
    op: str
    algorithm: str
    protocol: str
    constants: Constants

    @property
    def generation(self) -> str:
        """Row of the tables by generation."""
        capability = self.system.capability
        row = (capability >= 80) + (capability >= 90) + (capability >= 100)
        return GENERATIONS[row]

    @property
    def scale(self) -> int:
        """Column of the tables by hosts: one, two, more."""
        return min(self.system.nodes, 3) - 1

    @property
    def graph(self) -> Graph:
        """Channels that the algorithm uses."""
        system = self.system
        found: Mapping[str, Graph | None] = {
            "ring": system.ring, "tree": system.tree, "pat": system.tree, "nvls": system.nvls,
            "nvls_tree": system.nvls, "collnet_chain": system.collnet,
            "collnet_direct": system.collnet,
        }  # fmt: skip
        graph = found[self.algorithm]
        assert graph is not None  # only algorithms that the system has are asked about
        return graph

    @property
    def steps(self) -> int:
        """Steps of a ring of all ranks."""
        ranks = self.system.ranks
        known = {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1,
                 "reduce_scatter": ranks - 1}  # fmt: skip
        return known.get(self.op, ranks)


def algorithm_GBps(case: Case) -> float:
    """Expected bandwidth, of bytes of the message over time; GB/s."""
    return _bus_GBps(case) * _share(case)


def _bus_GBps(case: Case) -> float:
    found: Callable[[Case], float] = {
        "ring": _ring, "tree": _tree, "pat": _pat, "nvls": _nvls, "nvls_tree": _nvls_tree,
        "collnet_chain": _collnet_chain, "collnet_direct": _collnet_direct,
    }[case.algorithm]  # fmt: skip
    return found(case)


def _share(case: Case) -> float:
    """Bytes of the message over bytes on a rank's links."""
    by_steps = case.system.ranks / case.steps
    if case.algorithm == "ring":
        return by_steps
    if case.algorithm in {"nvls", "nvls_tree"}:
        return _nvls_share(case, by_steps)
    if case.op == "all_reduce":
        return 0.5
    return 1.0


def _nvls_share(case: Case, by_steps: float) -> float:
    constants, nodes = case.constants, case.system.nodes
    if case.algorithm == "nvls_tree" and constants.nvls_tree_ratio == "hops":
        return 0.7 * nodes / (2 * (nodes - 1))
    if not constants.nvls_by_steps:
        return 5 / 6
    return by_steps if case.op == "all_reduce" else 1.0


def _channels_GBps(case: Case) -> float:
    """All channels together, inside the host or (more than two hosts) between hosts."""
    graph = case.graph
    return graph.channels * (graph.intra_GBps if case.system.nodes <= 2 else graph.inter_GBps)


def _ll_max(case: Case) -> float:
    """Most that LL carries; between hosts the row is that of the CPU's vendor."""
    table = case.constants.ll_max_GBps
    if case.system.nodes == 1:
        return table[case.generation][0]
    return table["ampere" if case.system.cpu == "amd" else "volta"][case.scale]


def _ring(case: Case) -> float:
    constants, system = case.constants, case.system
    total = _channels_GBps(case)
    if case.protocol == "ll":
        local = system.nodes == 1 and case.op not in {"all_reduce", "reduce"}
        factor = constants.ring_ll_factor_local if local else constants.ring_ll_factor
        return min(_ll_max(case), total * factor)
    if case.protocol == "ll128":
        lonely = constants.ring_ll128_lonely if system.per_node < 2 else 1.0
        most = case.graph.channels * constants.ring_ll128_GBps[case.generation][case.scale]
        return min(total * (0.92 if lonely == 1.0 else lonely), most)
    if constants.ampere_cap_GBps and case.generation == "ampere":
        return min(total, constants.ampere_cap_GBps)
    return total


def _tree(case: Case) -> float:
    constants, graph = case.constants, case.graph
    most = graph.channels * constants.tree_GBps[case.generation][case.scale]
    total = min(0.92 * _channels_GBps(case), most)
    if case.protocol == "ll":
        total = min(total / 3.8, _ll_max(case))
    elif case.protocol == "ll128":
        most = graph.channels * constants.tree_ll128_GBps[case.generation][case.scale]
        total = min(total * (7 / 9 if case.system.nodes == 1 else 120 / 128), most)
    return total * (0.85 if graph.plain else 1.0)


def _pat(case: Case) -> float:
    return case.constants.pat_factor * _channels_GBps(case)


def _nvls(case: Case) -> float:
    graph, constants = case.graph, case.constants
    if constants.nvls_by_steps:
        return graph.channels * min(_reduced_GBps(case), graph.inter_GBps)
    if case.op == "all_reduce":
        return graph.channels * min(graph.intra_GBps, graph.inter_GBps)
    ranks = case.system.per_node
    return graph.channels * min(graph.intra_GBps * (ranks - 1) / ranks, 0.9 * graph.inter_GBps)


def _reduced_GBps(case: Case) -> float:
    """One channel through the switch's reduction, in bytes of a ring's bus bandwidth."""
    graph, ranks = case.graph, case.system.per_node
    speed = graph.intra_GBps * case.constants.nvls_efficiency[case.generation]
    speed *= (graph.channels - 1) / graph.channels
    return speed * (2.0 if case.op == "all_reduce" else (ranks - 1) / ranks)


def _nvls_tree(case: Case) -> float:
    graph, constants, nodes = case.graph, case.constants, case.system.nodes
    if not constants.nvls_by_steps:
        halved = constants.nvls_tree_halved and nodes > 2
        return graph.channels * min(graph.intra_GBps, graph.inter_GBps / (2 if halved else 1))
    between = graph.inter_GBps * (2 if nodes <= 2 else 1)
    most = constants.nvls_tree_GBps[case.generation][case.scale]
    return graph.channels * min(_reduced_GBps(case), between, most)


def _collnet_chain(case: Case) -> float:
    return case.graph.channels * case.graph.intra_GBps


def _collnet_direct(case: Case) -> float:
    graph, ranks = case.graph, case.system.per_node
    if case.op != "all_reduce":
        return ranks * min(graph.intra_GBps, 0.9 * graph.inter_GBps)
    factor = ranks / graph.channels
    factor -= (factor - 1) / 2
    total = graph.channels * graph.intra_GBps / factor
    return total * (0.85 if case.system.capability >= 90 else 1.0)
