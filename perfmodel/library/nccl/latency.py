"""Latency that NCCL's tuner expects of an algorithm and protocol.

Source of the formulas: NVIDIA/nccl 2.30.7 ``src/graph/tuning.cc`` (ncclTopoTuneModel) and the older
versions that ``tuner.yaml`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfmodel.library.nccl.bandwidth import Case
from perfmodel.library.nccl.constants import PROTOCOLS, Three


def latency_us(case: Case, post_us: float | None = None) -> float:
    """Expected latency; microseconds.

    Parameters
    ----------
    case : Case
    post_us : float, optional
        ``NCCL_NET_OVERHEAD`` in microseconds, where a user gives it.
    """
    base = _of(case.constants.base_us, case)
    found: Callable[[Case], float] = {
        "tree": _tree, "collnet_chain": _collnet_chain, "collnet_direct": _collnet_direct,
        "nvls": _nvls, "nvls_tree": _nvls_tree, "pat": _pat,
    }.get(case.algorithm, lambda ring: _ring(ring, post_us))  # fmt: skip
    return base + found(case)


def _of(table: Mapping[str, Three], case: Case, algorithm: str | None = None) -> float:
    return table[algorithm or case.algorithm][PROTOCOLS.index(case.protocol)]


def _inside(case: Case) -> float:
    """One step inside a host: NVLink only where all ways are, PCIe else."""
    over = case.constants.nvlink_us if case.graph.type_intra == "NVL" else case.constants.pcie_us
    factor = case.constants.ll_intra_factor
    slowed = case.system.nodes > 1 and case.protocol == "ll" and case.algorithm in {"ring", "tree"}
    return _of(over, case) * (factor if slowed else 1.0)


def _between(case: Case) -> float:
    """One step between hosts."""
    lonely = case.system.per_node <= 1 and case.algorithm == "ring"
    stated = case.system.net_latency_us * (2 if case.protocol == "simple" else 1)  # and a flush
    return _of(case.constants.network_us, case, "tree" if lonely else None) + stated


def _ring(case: Case, post_us: float | None) -> float:
    system, constants = case.system, case.constants
    if case.op in {"broadcast", "reduce"}:
        return _ring_rooted(case)
    hosts = 0
    post = 0.0
    if system.nodes > 1:
        each = system.nodes if constants.ring_hops_per_host else system.nodes - 1
        hosts = 2 * each if case.op == "all_reduce" else each
        post = constants.post_us[system.cpu] if post_us is None else post_us
        post *= 3 if case.protocol == "simple" else 1
    inside = max(_inside(case), post)
    return (case.steps - hosts) * inside + hosts * _between(case)


def _ring_rooted(case: Case) -> float:
    """Broadcast and reduce: one step where all channels run alike, all of them where not."""
    table = case.constants.network_us
    if case.system.nodes == 1:
        over_nvlink = case.graph.type_intra == "NVL"
        table = case.constants.nvlink_us if over_nvlink else case.constants.pcie_us
    if case.graph.same_channels:
        return _of(table, case)
    slower = "tree" if case.protocol == "simple" else None
    return case.steps * _of(table, case, slower)


def _depth(nodes: int) -> int:
    """Whole part of the base-2 logarithm."""
    return nodes.bit_length() - 1


def _tree(case: Case) -> float:
    system = case.system
    return 2 * ((system.per_node - 1) * _inside(case) + _depth(system.nodes) * _between(case))


def _collnet_direct(case: Case) -> float:
    ranks = case.system.per_node
    return 2 * (min(1, ranks - 1) * _inside(case) + 0.4 * (ranks - 1)) + _between(case)


def _collnet_chain(case: Case) -> float:
    return 2 * (case.system.per_node - 1) * _inside(case) + _between(case)


def _nvls(case: Case) -> float:
    return _inside(case) + (_between(case) if case.system.nodes > 1 else 0.0)


def _nvls_tree(case: Case) -> float:
    nodes = case.system.nodes
    hops = 2 * (nodes - 1) if case.constants.nvls_tree_linear else 2 * _depth(nodes)
    return _inside(case) + hops * _between(case)


def _pat(case: Case) -> float:
    system = case.system
    return _depth(system.nodes) * _between(case) / 3.5 + 2.8 * system.ranks
