"""Latency and bandwidth that NCCL's tuner expects of an algorithm and protocol.

Source of the formulas: NVIDIA/nccl 2.30.7 ``src/graph/tuning.cc`` (ncclTopoTuneModel) and the older
versions that ``tuner.yaml`` names; of RCCL those of NCCL with what it has instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, cast

from perfmodel.collectives.catalog import PROTOCOLS
from perfmodel.files import FileModel, shipped
from perfmodel.files.spec import ShippedTable
from perfmodel.library.nccl.communicator import System
from perfmodel.library.nccl.graphs import Graph
from perfmodel.library.nccl.host_graph import of_capability

Three = tuple[float, float, float]
"""Of LL, LL128 and Simple; or on one, two and more hosts."""


class Constants(FileModel):
    """Contents of ``tuner.yaml``, of NCCL and RCCL; see its comments."""

    rows_since: dict[str, int]
    """Compute capability of the first GPUs of each row by generation."""
    base_us: dict[str, Three]
    nvlink_us: dict[str, Three]
    pcie_us: dict[str, Three]
    network_us: dict[str, Three]
    ll_max_GBps: dict[str, Three]
    ring_ll128_GBps: dict[str, Three]
    tree_ll128_GBps: dict[str, Three]
    tree_GBps: dict[str, Three]
    nvls_tree_GBps: dict[str, Three]
    nvls_efficiency: dict[str, float]
    nvls_by_steps: bool
    nvls_tree_ratio: Literal["steps", "five_sixths", "hops"]
    nvls_tree_halved: bool
    nvls_tree_linear: bool
    post_us: dict[str, float]
    ring_ll_factor: float
    ring_ll_factor_local: float
    ring_ll128_lonely: float
    pat_factor: float
    pat: bool
    ring_hops_per_host: bool
    ll_intra_factor: float
    ampere_cap_GBps: float
    plateau_factors: tuple[float, float]
    """On a ring's latency between hosts, before sm80 and since."""
    plateau_rank_bytes: float
    tree_correction: dict[str, tuple[float, ...]]
    by_size: dict[str, float] = {}
    ring_correction: dict[str, tuple[float, ...]] = {}
    bandwidth_ratio: dict[str, tuple[Three, Three, Three]] = {}
    sizes: dict[int, dict[str, dict[str, tuple[float, float]]]] = {}
    """By hosts, operation and protocol: more than so many bytes, and at most so many."""
    pairs: tuple[tuple[str, int, int], ...] = ()
    """All-reduces of MSCCL on eight GPUs: protocol, most bytes, chunks that they divide into."""
    pairs_by_default: bool = False


class _Difference(FileModel):
    set: dict[str, Any] = {}
    rows: dict[str, dict[str, Three]] = {}
    """Rows of the tables of latencies, by table and algorithm."""


class _Change(_Difference):
    before: str


class _Table(ShippedTable):
    source: str
    newest: Constants
    changes: tuple[_Change, ...]
    rccl_source: str
    rccl: dict[str, _Difference]


_table = shipped(_Table, __file__, "tuner.yaml")


@cache
def constants_of(release: tuple[float, float], generation: str = "") -> Constants:
    """Constants of a version, (major, minor), for a generation of GPUs; before 2.7 those of 2.7."""
    values = _table().newest.model_dump()
    newer = (each for each in _table().changes if release < tuple(map(int, each.before.split("."))))
    for difference in (*newer, *filter(None, [_table().rccl.get(generation)])):
        values |= difference.set
        for name, rows in difference.rows.items():
            values[name] = values[name] | rows
    return Constants.model_validate(values)


@dataclass(frozen=True, slots=True)
class Case:
    """What the tuner estimates: an operation by an algorithm and a protocol on a system."""

    system: System
    op: str
    """all_reduce, all_gather, reduce_scatter, broadcast or reduce."""
    algorithm: str
    protocol: str
    constants: Constants

    @property
    def generation(self) -> str:
        """Row of the tables by generation."""
        since = self.constants.rows_since
        return of_capability({first: name for name, first in since.items()}, self.system.capability)

    @property
    def scale(self) -> int:
        """Column of the tables by hosts: one, two, more."""
        return min(self.system.nodes, 3) - 1

    @property
    def graph(self) -> Graph:
        """Channels that the algorithm uses."""
        # The tuner leaves out algorithms that the system lacks.
        return cast("Graph", getattr(self.system, COST_MODELS[self.algorithm].graph))

    @property
    def inside_us(self) -> Mapping[str, Three]:
        """Latencies of a step inside a host: of NVLink only where all paths are, of PCIe else."""
        over_nvlink = self.graph.type_intra == "NVL"
        return self.constants.nvlink_us if over_nvlink else self.constants.pcie_us

    @property
    def steps(self) -> int:
        """Steps of a ring of all ranks."""
        ranks = self.system.ranks
        return {
            "all_reduce": 2 * (ranks - 1),
            "all_gather": ranks - 1,
            "reduce_scatter": ranks - 1,
        }.get(self.op, ranks)


def algorithm_GBps(case: Case) -> float:
    """Expected bandwidth, of bytes of the message over time; GB/s."""
    ratios = case.constants.bandwidth_ratio.get(case.algorithm)
    if ratios is None:
        return COST_MODELS[case.algorithm].bus_GBps(case) * _share(case)
    return ratios[case.scale][PROTOCOLS.index(case.protocol)] * _channels_GBps(case) * _share(case)


def _share(case: Case) -> float:
    """Bytes of the message over bytes on a rank's links."""
    by_steps = case.system.ranks / case.steps
    if case.algorithm == "ring":
        return by_steps
    if case.algorithm in {"nvls", "nvls_tree"}:
        return _nvls_share(case, by_steps)
    return 0.5 if case.op == "all_reduce" else 1.0


def _nvls_share(case: Case, by_steps: float) -> float:
    constants, nodes = case.constants, case.system.nodes
    if case.algorithm == "nvls_tree" and constants.nvls_tree_ratio == "hops":
        return 0.7 * nodes / (2 * (nodes - 1))
    if not constants.nvls_by_steps:
        return 5 / 6
    return by_steps if case.op == "all_reduce" else 1.0


def _channels_GBps(case: Case) -> float:
    """Return the rate of all channels together; GB/s.

    On one or two hosts it is that inside a host, on more that between hosts.
    """
    graph = case.graph
    return graph.channels * (graph.intra_GBps if case.system.nodes <= 2 else graph.inter_GBps)


def _ll_max(case: Case) -> float:
    """Most that LL carries; between hosts the row is that of the CPU's vendor."""
    between = "ampere" if case.system.cpu == "amd" else "volta"
    row = case.generation if case.system.nodes == 1 else between
    return case.constants.ll_max_GBps[row][case.scale]


def _ring_GBps(case: Case) -> float:
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


def _tree_GBps(case: Case) -> float:
    constants, graph = case.constants, case.graph
    most = graph.channels * constants.tree_GBps[case.generation][case.scale]
    total = min(0.92 * _channels_GBps(case), most)
    if case.protocol == "ll":
        total = min(total / 3.8, _ll_max(case))
    elif case.protocol == "ll128":
        most = graph.channels * constants.tree_ll128_GBps[case.generation][case.scale]
        total = min(total * (7 / 9 if case.system.nodes == 1 else 120 / 128), most)
    return total * (0.85 if graph.plain else 1.0)


def _pat_GBps(case: Case) -> float:
    return case.constants.pat_factor * _channels_GBps(case)


def _nvls_GBps(case: Case) -> float:
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


def _nvls_tree_GBps(case: Case) -> float:
    graph, constants, nodes = case.graph, case.constants, case.system.nodes
    if not constants.nvls_by_steps:
        halved = constants.nvls_tree_halved and nodes > 2
        return graph.channels * min(graph.intra_GBps, graph.inter_GBps / (2 if halved else 1))
    between = graph.inter_GBps * (2 if nodes <= 2 else 1)
    most = constants.nvls_tree_GBps[case.generation][case.scale]
    return graph.channels * min(_reduced_GBps(case), between, most)


def _collnet_chain_GBps(case: Case) -> float:
    return case.graph.channels * case.graph.intra_GBps


def _collnet_direct_GBps(case: Case) -> float:
    graph, ranks = case.graph, case.system.per_node
    if case.op != "all_reduce":
        return ranks * min(graph.intra_GBps, 0.9 * graph.inter_GBps)
    factor = ranks / graph.channels
    factor -= (factor - 1) / 2
    total = graph.channels * graph.intra_GBps / factor
    return total * (0.85 if case.system.capability >= 90 else 1.0)


def latency_us(case: Case, post_us: float | None = None) -> float:
    """Expected latency; microseconds.

    `post_us`: ``NCCL_NET_OVERHEAD`` in microseconds, where a user gives it.
    """
    return _of(case.constants.base_us, case) + COST_MODELS[case.algorithm].latency_us(case, post_us)


def _of(table: Mapping[str, Three], case: Case, algorithm: str | None = None) -> float:
    return table[algorithm or case.algorithm][PROTOCOLS.index(case.protocol)]


def _inside(case: Case) -> float:
    """One step inside a host."""
    slowed = case.system.nodes > 1 and case.protocol == "ll" and case.algorithm in {"ring", "tree"}
    return _of(case.inside_us, case) * (case.constants.ll_intra_factor if slowed else 1.0)


def _between(case: Case) -> float:
    """One step between hosts."""
    lonely = case.system.per_node <= 1 and case.algorithm == "ring"
    stated = case.system.net_latency_us * (2 if case.protocol == "simple" else 1)  # and a flush
    return _of(case.constants.network_us, case, "tree" if lonely else None) + stated


def _ring_us(case: Case, post_us: float | None) -> float:
    system, constants = case.system, case.constants
    if case.op in {"broadcast", "reduce"}:
        return _ring_rooted_us(case)
    if system.nodes == 1:
        return case.steps * _inside(case)
    each = system.nodes if constants.ring_hops_per_host else system.nodes - 1
    hosts = 2 * each if case.op == "all_reduce" else each
    post = constants.post_us[system.cpu] if post_us is None else post_us
    post *= 3 if case.protocol == "simple" else 1
    return (case.steps - hosts) * max(_inside(case), post) + hosts * _between(case)


def _ring_rooted_us(case: Case) -> float:
    """Broadcast and reduce: one step where all channels run alike, all of them where not."""
    table = case.inside_us if case.system.nodes == 1 else case.constants.network_us
    if case.graph.same_channels:
        return _of(table, case)
    return case.steps * _of(table, case, "tree" if case.protocol == "simple" else None)


def _depth(nodes: int) -> int:
    """Whole part of the base-2 logarithm."""
    return nodes.bit_length() - 1


def _tree_us(case: Case, _: float | None) -> float:
    system = case.system
    return 2 * ((system.per_node - 1) * _inside(case) + _depth(system.nodes) * _between(case))


def _collnet_direct_us(case: Case, _: float | None) -> float:
    ranks = case.system.per_node
    return 2 * (min(1, ranks - 1) * _inside(case) + 0.4 * (ranks - 1)) + _between(case)


def _collnet_chain_us(case: Case, _: float | None) -> float:
    return 2 * (case.system.per_node - 1) * _inside(case) + _between(case)


def _nvls_us(case: Case, _: float | None) -> float:
    return _inside(case) + (_between(case) if case.system.nodes > 1 else 0.0)


def _nvls_tree_us(case: Case, _: float | None) -> float:
    nodes = case.system.nodes
    hops = 2 * (nodes - 1) if case.constants.nvls_tree_linear else 2 * _depth(nodes)
    return _inside(case) + hops * _between(case)


def _pat_us(case: Case, _: float | None) -> float:
    system = case.system
    return _depth(system.nodes) * _between(case) / 3.5 + 2.8 * system.ranks


@dataclass(frozen=True, slots=True)
class CostModel:
    """Formulas of one algorithm."""

    graph: str
    """Field of `System` with the channels that it uses."""
    bus_GBps: Callable[[Case], float]
    """Bytes on a rank's links over time."""
    latency_us: Callable[[Case, float | None], float]
    """Beside the base latency; takes ``NCCL_NET_OVERHEAD`` too."""


COST_MODELS: Mapping[str, CostModel] = MappingProxyType(
    {
        "ring": CostModel("ring", _ring_GBps, _ring_us),
        "tree": CostModel("tree", _tree_GBps, _tree_us),
        "pat": CostModel("tree", _pat_GBps, _pat_us),
        "nvls": CostModel("nvls", _nvls_GBps, _nvls_us),
        "nvls_tree": CostModel("nvls", _nvls_tree_GBps, _nvls_tree_us),
        "collnet_chain": CostModel("collnet", _collnet_chain_GBps, _collnet_chain_us),
        "collnet_direct": CostModel("collnet", _collnet_direct_GBps, _collnet_direct_us),
    }
)
"""NCCL's name of an algorithm -> its formulas."""
