"""Whether what one run shows holds for another, by what their library was told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from perfmodel.files import Spec, load
from perfmodel.library.settings import Settings
from perfmodel.library.transport import peer_paths, told
from perfmodel.topology.model import Topology


class _Differences(Spec):
    rules_changed: Mapping[str, str]
    switches: Mapping[str, int]


@cache
def _known() -> _Differences:
    return load(_Differences, Path(__file__).parent / "compatible.yaml")


Told = tuple[Topology, Settings]
"""A machine, and what its library was told."""


def differences(op: str, one: Told, other: Told) -> tuple[str, ...]:
    """Say why times of a collective in one run tell little of the other on the same hardware.

    A version that is not given is not held against a run.

    Returns
    -------
    tuple of str
        Empty where nothing speaks against it.
    """
    return (*told_otherwise(op, one[1], other[1]), *_transports(one, other))


def told_otherwise(op: str, one: Settings, other: Settings) -> tuple[str, ...]:
    """The part of `differences` that settings alone show."""
    return (*_choices(op, one, other), *_rules(one, other))


def _choices(op: str, one: Settings, other: Settings) -> Iterator[str]:
    for name, read in (("NCCL_ALGO", Settings.algorithms), ("NCCL_PROTO", Settings.protocols)):
        here, there = read(one, op), read(other, op)
        if here != there:
            yield f"{name} {_listed(here)} against {_listed(there)}"
    for name, own in _known().switches.items():
        ours, theirs = (bool(int(s.env.get(name, own))) for s in (one, other))
        if ours != theirs:
            yield f"{name}={int(ours)} against {int(theirs)}"


def _rules(one: Settings, other: Settings) -> Iterator[str]:
    if one.version is None or other.version is None:
        return
    for release in _known().rules_changed:
        since = tuple(int(part) for part in release.split("."))
        if (one.release >= since) != (other.release >= since):
            yield f"NCCL {one.version} against {other.version}, whose rules changed with {release}"


def _transports(one: Told, other: Told) -> Iterator[str]:
    here, there = (told(*run) for run in (one, other))
    several = min(here.hosts, there.hosts) > 1
    if several and here.network != there.network:
        yield f"network {here.network} against {there.network}"
    if several and here.gpudirect_rdma != there.gpudirect_rdma:
        yield "NICs that reach GPU memory against NICs that do not"
    pcie = not any("nvlink" in topology.arcs.kinds for topology in (here, there))
    shared = min(topology.gpus_per_host for topology in (here, there)) > 1
    if pcie and shared and peer_paths(here) != peer_paths(there):
        yield "GPUs that copy to each other against GPUs that go through the host's memory"


def _listed(names: frozenset[str] | None) -> str:
    return "free" if names is None else "/".join(sorted(names)) or "none"
