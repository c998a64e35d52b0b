"""NCCL's choice of algorithm and protocol, and what lays each over channels, NICs and switches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from perfmodel.arrays import RankGroup, distinct, rank_array
from perfmodel.collectives.algorithms.own import OWN
from perfmodel.collectives.catalog import (
    ALGORITHMS,
    NCCL_ALGORITHMS,
    PROTOCOLS,
    Algorithm,
    find_algorithm,
)
from perfmodel.errors import Fault, InputError
from perfmodel.library.lowering.lowered import LaidSchedule
from perfmodel.library.lowering.protocols import protocol_parameters, usable_protocols
from perfmodel.library.lowering.rings import OWN_ALGORITHM, SINGLE_SENDS, lay_by_name
from perfmodel.library.machine import Machine
from perfmodel.library.model import Protocol
from perfmodel.library.nccl.in_network import find_obstacle, lay_collnet, lay_nvls
from perfmodel.library.nccl.trees import lay_tree
from perfmodel.library.nccl.tuner import channels_used, choices, system_on

NCCL_USUAL: Mapping[str, str] = MappingProxyType({"all_to_all": "batched"})
"""What NCCL runs for an operation, where that is not what other libraries run."""

LL_SENDS_BYTES = 16384
"""NCCL_P2P_LL_THRESHOLD; NVIDIA/nccl 2.30.7 ``src/enqueue.cc``."""


def chosen_algorithm(
    machine: Machine, op: str, nbytes: int, group: RankGroup
) -> tuple[str, Mapping[str, Protocol]]:
    """Best of NCCL's own estimates that has a model here: algorithm, and its one protocol."""
    for choice in choices(machine, op, nbytes, group):
        row = NCCL_ALGORITHMS[op][choice.algorithm]
        if not row.function:
            continue
        if (
            row.name in {"nvls", "nvls_tree"}
            and find_obstacle(machine, op, row.name, group) is not None
        ):
            continue
        protocols = protocol_parameters(machine.library, op, row.name)
        if choice.protocol in protocols:
            return row.name, {choice.protocol: protocols[choice.protocol]}
    return OWN_ALGORITHM[op], usable_protocols(machine, group, op, OWN_ALGORITHM[op])


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
    if len(hosts) < len(group):
        ranks = f"{row.name!r} for {len(group)} ranks on {len(hosts)} hosts"
        raise InputError(Fault("algorithm", ranks, "one rank for each host"))
    return lay_by_name(machine, op, row.name, nbytes, group, 0)
