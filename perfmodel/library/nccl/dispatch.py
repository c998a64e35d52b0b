"""NCCL's choice of algorithm and protocol, and what lays each over channels, NICs and switches.

Algorithm and protocol that NCCL takes for an operation, a size and a group of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from types import MappingProxyType

import numpy as np

from perfmodel.arrays import RankGroup, distinct, rank_array
from perfmodel.collectives.algorithms.own import OWN
from perfmodel.collectives.catalog import (
    ALGORITHMS,
    NCCL_ALGORITHMS,
    PROTOCOLS,
    Algorithm,
    find_algorithm,
)
from perfmodel.errors import Fault, InputError, allowed_names, refuse_if
from perfmodel.library.lowering.lowered import ITEM_BYTES, LaidSchedule
from perfmodel.library.lowering.protocols import protocol_parameters, usable_protocols
from perfmodel.library.lowering.rings import OWN_ALGORITHM, SINGLE_SENDS, lay_by_name
from perfmodel.library.machine import Machine
from perfmodel.library.model import Protocol
from perfmodel.library.nccl.communicator import (
    System,
    channels_of,
    system_of,
    tree_threshold,
)
from perfmodel.library.nccl.cost_model import (
    Case,
    Constants,
    algorithm_GBps,
    constants_of,
    latency_us,
)
from perfmodel.library.nccl.host_graph import RANK
from perfmodel.library.nccl.in_network import find_obstacle, lay_collnet, lay_nvls
from perfmodel.library.nccl.trees import lay_tree
from perfmodel.library.settings import LibrarySettings

NCCL_USUAL: Mapping[str, str] = MappingProxyType({"all_to_all": "batched"})
"""What NCCL runs for an operation, where that is not what other libraries run."""

LL_SENDS_BYTES = 16384
"""NCCL_P2P_LL_THRESHOLD; NVIDIA/nccl 2.30.7 ``src/enqueue.cc``."""


def chosen_algorithm(
    machine: Machine, op: str, nbytes: int, group: RankGroup
) -> tuple[str, Mapping[str, Protocol]]:
    """Return the algorithm that NCCL estimates to be quickest, and its protocol by name.

    Algorithms without a model here are passed over. If none is left, it is the operation's own one
    with all protocols that the machine can use.
    """
    if op == "all_reduce" and (taken := _pairs_protocol(machine, nbytes, group)):
        return "all_pairs", {taken: protocol_parameters(machine.library, op, "all_pairs")[taken]}
    for choice in choices(machine, op, nbytes, group):
        row = NCCL_ALGORITHMS[op][choice.algorithm]
        protocols = protocol_parameters(machine.library, op, row.name)
        obstacle = row.name in {"nvls", "nvls_tree"} and find_obstacle(machine, op, row.name, group)
        if row.function and choice.protocol in protocols and not obstacle:
            return row.name, {choice.protocol: protocols[choice.protocol]}
    return OWN_ALGORITHM[op], usable_protocols(machine, group, op, OWN_ALGORITHM[op])


PAIRS_RANKS, PAIRS_CHANNELS = 8, 8
"""Ranks and channels of RCCL's all-pairs; ROCm/rccl ``tools/msccl-algorithms``, ngpus, nchannels
(4 up to 64 KiB)."""

PAIRS_UNTIL = (2, 28)
"""RCCL without MSCCL: ROCm/rocm-systems ``projects/rccl/CHANGELOG.md``, 2.28.3 for ROCm 7.13; that
of ROCm 7.11 and 7.12, of the same number, had it."""


def _pairs_protocol(machine: Machine, nbytes: int, group: RankGroup) -> str | None:
    """Protocol in which RCCL runs MSCCL's all-pairs, whatever it estimates; None where it does not.

    A version that is not stated is one with MSCCL. Sources: ``tuner.yaml``, `pairs`.
    """
    settings, system = machine.settings, system_on(machine, group)
    constants = constants_of(settings.release, system.generation)
    by_default = constants.pairs_by_default and system.nodes == 1
    processes = not settings.one_process or settings.is_on("RCCL_MSCCL_ENABLE_SINGLE_PROCESS")
    on = processes and settings.is_on("RCCL_MSCCL_ENABLE", default=True)
    removed = settings.version is not None and settings.release >= PAIRS_UNTIL
    forced = settings.is_on("RCCL_MSCCL_FORCE_ENABLE")
    if system.ranks != PAIRS_RANKS or removed or not (on and (by_default or forced)):
        return None
    fitting = (
        protocol
        for protocol, most, chunks in constants.pairs
        if 0 < nbytes <= most and nbytes // ITEM_BYTES % chunks == 0
    )
    return next(fitting, None)


def allowed_protocols(
    machine: Machine, op: str, name: str, nbytes: int, group: RankGroup
) -> Mapping[str, Protocol]:
    """Protocols in which NCCL may run an algorithm: as ``NCCL_PROTO`` says where that leaves any.

    Faults as of `usable_protocols`.
    """
    protocols = usable_protocols(machine, group, op, name)
    if op in SINGLE_SENDS:
        return send_protocol(protocols, nbytes if op == "send" else nbytes / len(group))
    runs_in = PROTOCOLS if name == OWN else find_algorithm(op, name).protocols
    settings = machine.settings.protocols(op)
    possible = {key: p for key, p in protocols.items() if key in runs_in}
    return {
        key: p for key, p in possible.items() if settings is None or key in settings
    } or possible


def send_protocol(protocols: Mapping[str, Protocol], nbytes: float) -> Mapping[str, Protocol]:
    """Protocol of a single send of so many bytes."""
    name = "ll" if nbytes <= LL_SENDS_BYTES else "simple"
    return {name: protocols[name]} if name in protocols else protocols


Layer = Callable[[Machine, str, Algorithm, int, RankGroup, str], LaidSchedule]
"""``layer(machine, op, row, nbytes, group, protocol)``."""

_LAID_HERE = {"tree", "nvls", "nvls_tree", "collnet_chain", "collnet_direct", "pat"}
"""Algorithms by NCCL's name; its rings and chains lie on the machine's channels."""


def find_layer(op: str, name: str) -> Layer | None:
    """What lays an algorithm over more than rings and nearest links; None where nothing does."""
    row = ALGORITHMS.get(op, {}).get(name)
    return _lay if row is not None and row.nccl in _LAID_HERE else None


def _lay(
    machine: Machine, op: str, row: Algorithm, nbytes: int, group: RankGroup, protocol: str
) -> LaidSchedule:
    if row.nccl == "pat":
        return _lay_pat(machine, op, row, nbytes, group)
    system = system_on(machine, group)
    channels = channels_used(system, op, row.nccl, protocol, nbytes, machine.settings)
    if row.nccl == "tree":
        return lay_tree(machine, nbytes, group, protocol, channels)
    if row.nccl in {"nvls", "nvls_tree"}:
        return lay_nvls(machine, op, row.name, nbytes, group, channels)
    return lay_collnet(machine, row.name, nbytes, group, channels)


def _lay_pat(
    machine: Machine, op: str, row: Algorithm, nbytes: int, group: RankGroup
) -> LaidSchedule:
    hosts = distinct(rank_array(group) // machine.topology.gpus_per_host)
    refuse_if(
        len(hosts) < len(group),
        "algorithm",
        f"{row.name!r} for {len(group)} ranks on {len(hosts)} hosts",
        "one rank for each host",
    )
    return lay_by_name(machine, op, row.name, nbytes, group, 0)


_LEAST_TRAFFIC = 32 * 1024
"""Bytes that a channel carries at least; NVIDIA/nccl 2.30.7 ``src/enqueue.cc``."""

_THRESHOLD = {"ll": 8, "ll128": 8, "simple": 64}
"""Bytes per thread below which fewer threads work; NVIDIA/nccl 2.30.7 ``src/include/comm.h``."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """NCCL's estimate for one algorithm and protocol."""

    algorithm: str
    protocol: str
    time_s: float


def predictions(
    system: System, op: str, nbytes: float, settings: LibrarySettings
) -> tuple[Prediction, ...]:
    """NCCL's own estimates, the least first: that is what NCCL would choose.

    `op`: one of `NCCL_ALGORITHMS`. `nbytes`: size as nccl-tests counts it: for all-gather and
    reduce-scatter that of all ranks together. `settings`: version, and what ``NCCL_ALGO`` and
    ``NCCL_PROTO`` leave. An operation for which NCCL does not have any of the algorithms named runs
    as if none were.

    Raises `InputError`: no such operation, or nothing that the environment leaves can run on this
    machine.
    """
    refuse_if(op not in NCCL_ALGORITHMS, "op", repr(op), allowed_names(NCCL_ALGORITHMS, op))
    constants = constants_of(settings.release, system.generation)

    def estimate(algorithm: str, protocol: str) -> Prediction:
        case = Case(system, op, algorithm, protocol, constants)
        return Prediction(algorithm, protocol, _time_s(case, nbytes, settings))

    estimates = sorted(
        starmap(estimate, _enabled_pairs(system, op, settings, constants)),
        key=lambda each: each.time_s,
    )
    if constants.by_size and op == "all_reduce":
        largest = tree_threshold(system, settings, constants.by_size)
        taken_by_size = "tree" if nbytes <= largest else "ring"
        estimates.sort(key=lambda each: each.algorithm != taken_by_size)
    stated = None if settings.protocols(op) else _stated_protocol(system, op, nbytes, constants)
    if stated is None:
        return tuple(estimates)
    taken = estimate(estimates[0].algorithm, stated)  # whether or not the paths allow it
    return (taken, *(each for each in estimates if each != taken))


def _stated_protocol(system: System, op: str, nbytes: float, constants: Constants) -> str | None:
    """Protocol that RCCL takes by size, whatever it estimates; None where estimates decide."""
    ranges = constants.sizes.get(min(system.nodes, 3), {}).get(op, {})
    each_bytes = nbytes if op == "all_reduce" else nbytes / system.ranks
    fitting = (name for name, (above, most) in ranges.items() if above < each_bytes <= most)
    return next(fitting, None)


def _time_s(case: Case, nbytes: float, settings: LibrarySettings) -> float:
    """Estimate of ncclTopoGetAlgoTime."""
    overhead = settings.count("NCCL_NET_OVERHEAD")
    lat_us = latency_us(case, None if overhead is None else overhead / 1000)
    rate = algorithm_GBps(case) * _correction(case, nbytes, settings)
    if rate <= 0:
        return float("inf")
    if _on_plateau(case, nbytes, channels_of(case.system, case.algorithm, settings)):
        before_sm80, since = case.constants.plateau_factors
        lat_us *= before_sm80 if case.system.capability < 80 else since
    return lat_us * 1e-6 + nbytes / (rate * 1e9)


def _on_plateau(case: Case, nbytes: float, channels: int) -> bool:
    """Whether a ring between hosts has 64 bytes or more for each rank and channel."""
    system, rank_bytes = case.system, case.constants.plateau_rank_bytes
    ring = case.algorithm == "ring" and case.protocol == "simple" and case.op == "all_reduce"
    return ring and system.nodes > 1 and nbytes / system.ranks >= (rank_bytes or 64 * channels)


def _correction(case: Case, nbytes: float, settings: LibrarySettings) -> float:
    """Share of its bandwidth that a tree reaches at a size, and of RCCL a ring between hosts."""
    new_tree = (
        case.algorithm == "nvls_tree"
        and case.system.capability >= 100
        and case.system.cpu in {"intel", "amd"}
        and settings.release >= (2, 28)
    )
    rings, at = case.constants.ring_correction, int(nbytes // 64).bit_length() - 1
    if rings and (case.algorithm == "tree" or case.system.nodes > 1):
        table = (case.constants.tree_correction if case.algorithm == "tree" else rings)[
            case.protocol
        ]
        return table[min(max(at, 0), len(table) - 1)]
    if case.op != "all_reduce" or not (case.algorithm == "tree" or new_tree):
        return 1.0
    table = case.constants.tree_correction[case.protocol]
    if settings.release < (2, 28):
        table = table[:23]
    return table[at] if 0 <= at < len(table) else 1.0


def channels_used(
    system: System, op: str, algorithm: str, protocol: str, nbytes: float, settings: LibrarySettings
) -> int:
    """Channels that work on a message: fewer where there is little for each thread.

    Source: NVIDIA/nccl 2.30.7 ``src/enqueue.cc``, topoGetAlgoInfo and scheduleCollTasksToPlan.
    """
    channels = channels_of(system, algorithm, settings)
    if algorithm not in {"ring", "tree", "pat"}:
        return channels
    threads = _threads(system, algorithm, protocol, settings)
    least = _THRESHOLD[protocol] * (system.ranks if (algorithm, protocol) == ("ring", "ll") else 1)
    while channels > 1 and nbytes < channels * threads * least:
        channels -= 1
    times = {"all_reduce": 2, "all_gather": system.ranks, "reduce_scatter": system.ranks}
    traffic = nbytes * times.get(op, 1) * (4 if protocol == "ll" else 1)
    return max(1, min(channels, int(traffic // _LEAST_TRAFFIC)))


def _threads(system: System, algorithm: str, protocol: str, settings: LibrarySettings) -> int:
    if protocol == "ll128":
        return 640
    named = settings.count("NCCL_NTHREADS")
    if named is not None:
        return max(64, min(named, 512))
    ring = system.ring
    slow = algorithm == "ring" and protocol == "simple" and ring.channels * ring.intra_GBps <= 12
    return 256 if slow else 512


def _enabled_pairs(
    system: System, op: str, settings: LibrarySettings, constants: Constants
) -> list[tuple[str, str]]:
    """Algorithms and protocols that this machine and the environment leave."""
    named = settings.algorithms(op)
    if named is not None and not named & NCCL_ALGORITHMS[op].keys():
        named = None
    named_protocols = settings.protocols(op)
    possible = list(_possible_pairs(system, op, settings, constants, named_protocols))
    enabled = [
        (algorithm, protocol)
        for algorithm, protocol in possible
        if (named is None or algorithm in named)
        and (named_protocols is None or protocol in named_protocols)
    ]
    if enabled:
        return enabled
    left, variable = {algorithm for algorithm, _ in possible}, "NCCL_ALGO"
    if named is None or named & left:
        left = {protocol for a, protocol in possible if named is None or a in named}
        variable = "NCCL_PROTO"
    allowed = f"for {op} on this machine {allowed_names(sorted(left))}"
    raise InputError(Fault(f"env.{variable}", repr(settings.env[variable]), allowed))


def _possible_pairs(
    system: System,
    op: str,
    settings: LibrarySettings,
    constants: Constants,
    named_protocols: frozenset[str] | None,
) -> Iterator[tuple[str, str]]:
    several = system.nodes > 1
    collnet = several and system.collnet is not None and settings.is_on("NCCL_COLLNET_ENABLE")
    lonely = several and system.per_node == 1
    # NVLSTree not between racks, each of which is one NVLink domain. Source: NVIDIA/nccl 2.21
    # src/graph/tuning.cc, NCCL_ALGO_NVLS_TREE off with MNNVL; and 2.29 still runs rings there
    # (all_reduce on 32 hosts of GB200 in two racks, oracle-quickstart).
    nvls_tree = several and not system.rack and settings.release >= (2, 18)
    runs = {
        "ring": True,
        "tree": settings.release >= (2, 4),
        "nvls": system.nvls is not None and not several,
        "nvls_tree": system.nvls is not None and nvls_tree,
        "collnet_chain": collnet,
        "collnet_direct": collnet and system.tree.type_intra == "NVL" and 1 < system.gpus <= 8,
        "pat": constants.pat and lonely and settings.is_on("NCCL_PAT_ENABLE", default=True),
    }
    for algorithm, row in NCCL_ALGORITHMS[op].items():
        if not runs[algorithm]:
            continue
        if "ll" in row.protocols and (system.ordered or named_protocols is not None):
            yield algorithm, "ll"
            if _may_ll128(system, algorithm, settings, named_protocols):
                yield algorithm, "ll128"
        yield algorithm, "simple"


def _may_ll128(
    system: System,
    algorithm: str,
    settings: LibrarySettings,
    named_protocols: frozenset[str] | None,
) -> bool:
    """Whether all paths keep 128-byte writes whole, or the user names LL128 (2.5 on)."""
    if settings.release < (2, 5):
        return False
    switch = settings.env.get("NCCL_LL128_ENABLE", "2")
    if switch != "2":
        return switch == "1"
    if (
        named_protocols is not None
        and "ll128" in named_protocols
        and "^" not in settings.env["NCCL_PROTO"]
    ):
        return True
    graph = system.ring if algorithm == "ring" else system.tree
    farthest = "PXN" if system.capability >= 90 else "PXB"
    return (
        system.capability >= 70
        and RANK[graph.type_intra] <= RANK["NVB"]
        and RANK[graph.type_inter] <= RANK[farthest]
    )


def system_on(machine: Machine, group: RankGroup) -> System:
    """What NCCL knows of a group; looked up once for all groups of the same GPUs on each host."""

    def search() -> System:
        return (
            system_of(machine.topology, machine.router, group, machine.settings)
            if machine.decides_on is None
            else system_on(machine.decides_on, group)
        )

    def search_once_per_shape() -> System:
        ranks, size = np.asarray(group, dtype=np.int64), machine.topology.gpus_per_host
        hosts, counts = np.unique(ranks // size, return_counts=True)
        local = tuple((ranks % size).tolist())
        of_one = local[: len(local) // len(hosts)]
        alike = bool((counts == counts[0]).all()) and local == of_one * len(hosts)
        once = alike and not machine.topology.dead
        return machine.laid(("nccl system", of_one, len(hosts)), search) if once else search()

    return machine.laid(("nccl system", group), search_once_per_shape)


def choices(machine: Machine, op: str, nbytes: float, group: RankGroup) -> tuple[Prediction, ...]:
    """NCCL's estimates for this machine, its choice first.

    `op`: one of `perfmodel.collectives.catalog.NCCL_ALGORITHMS`. `group`: ranks of the topology, at
    least two.

    Raises `InputError`: no such operation, or the environment leaves nothing that can run here.
    """
    system, settings = system_on(machine, group), machine.settings
    named = settings.env.get("NCCL_ALGO"), settings.env.get("NCCL_PROTO")
    key = "nccl choices", system, op, nbytes, *named
    return machine.laid(key, lambda: predictions(system, op, nbytes, settings))
