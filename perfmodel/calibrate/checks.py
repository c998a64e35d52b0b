"""Whether a machine can have made a measurement.

Whether what one run shows holds for another, by what their library was told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from perfmodel.errors import Fault
from perfmodel.files import FileModel, load_document
from perfmodel.library.machine import Machine
from perfmodel.library.settings import LibrarySettings
from perfmodel.library.transport import apply_settings, peer_paths
from perfmodel.measure.record import Measurement
from perfmodel.topology.model import Topology

PROCESSES = "cpu"
"""Generation of what takes a GPU's place where ranks are processes that compute on a CPU."""

OTHERS_PERCENT = 5
"""Share of the cores that others may use without a word: less is within what runs differ anyway."""


def faults_of(made: Measurement, machine: Machine, file: str) -> Iterator[Fault]:
    """Everything that shows that the measurement was made on something else."""
    topology = machine.topology

    def fault(field: str, found: object, allowed: str) -> Fault:
        return Fault(field, str(found), allowed, file)

    if made.topology is not None and made.topology != topology.template:
        yield fault("topology", repr(made.topology), f"{topology.template!r}, as asked")
    if made.backend == "device":
        yield fault("backend", "'device'", "'gloo' or 'nccl': collectives of ranks")
    elif machine.library.name not in {made.backend, "plain"}:
        yield fault("backend", repr(made.backend), f"{machine.library.name!r}, as asked")
    elif made.topology is None:
        yield from _backend_faults(made, topology, file)
    if not 2 <= made.ranks <= len(topology.ranks):
        yield fault(
            "ranks", made.ranks, f"2 to {len(topology.ranks)} ranks, as {topology.name} has"
        )
    elif made.hosts is not None and made.hosts != _hosts(made, topology):
        allowed = f"{_hosts(made, topology)}, over which {topology.name} spreads {made.ranks} ranks"
        yield fault("hosts", made.hosts, allowed)
    bad = [row for row in made.rows if row.median_s <= 0 or row.nbytes <= 0]
    if bad:
        found = f"{len(bad)} rows with a size or a median time of zero or less"
        yield fault("rows", found, "sizes and times above zero")


def doubts(
    measurements: Sequence[Measurement], topology: Topology, files: Sequence[str]
) -> list[str]:
    """What speaks against these measurements being of this machine, or of one machine; to be told.

    Parameters
    ----------
    measurements : sequence of Measurement
    topology : Topology
    files : sequence of str
        Name of each measurement.
    """
    found = []
    silent = [file for file, made in zip(files, measurements, strict=True) if made.topology is None]
    if silent:
        found.append(
            f"{', '.join(silent)} does not say which template describes the machine it was made "
            f"on ('perfmodel measure --topology' records it): taken for {topology.template}"
        )
    first = measurements[0]
    model = topology.gpu.name.split("-")[0]
    for file, made in zip(files, measurements, strict=True):
        gpu = made.machine.get("gpu", "")
        if gpu and model not in gpu.lower().replace(" ", ""):
            found.append(f"{file} was measured on {gpu}; {topology.template} has {model}")
        busy = made.machine.get("other_work", "")
        share = busy.partition(" ")[0]
        if share.isdecimal() and int(share) >= OTHERS_PERCENT:
            found.append(f"other work kept {busy} busy while {file} was measured")
        for field in ("cpu", "cores", "gpu"):
            here, there = made.machine.get(field), first.machine.get(field)
            if here != there:
                found.append(f"{file} was measured on {field} {here}, {files[0]} on {there}")
    return found


def _hosts(made: Measurement, topology: Topology) -> int:
    return -(-made.ranks // topology.gpus_per_host)


def _backend_faults(made: Measurement, topology: Topology, file: str) -> Iterator[Fault]:
    """Processes that should be GPUs, and GPUs that should be processes."""
    processes = topology.gpu.generation == PROCESSES
    where = f"machine ({topology.template} as asked)"
    if made.backend == "nccl" and processes:
        yield Fault(where, "nccl between GPUs", "gloo between processes on a CPU", file)
    elif made.backend == "gloo" and not processes and topology.gpus_per_host > 1:
        allowed = f"GPUs that share a host; for {_name_processor(made)} see --topology cpu-loopback"
        yield Fault(where, "gloo between processes on a CPU", allowed, file)


def _name_processor(made: Measurement) -> str:
    cores, cpu = made.machine.get("cores"), made.machine.get("cpu", "processes on a CPU")
    return f"{cores} cores of {cpu}" if cores else cpu


class _Differences(FileModel):
    rules_changed: Mapping[str, str]
    switches: Mapping[str, int]


@cache
def _difference_rules() -> _Differences:
    return load_document(_Differences, Path(__file__).parent / "compatible.yaml")


ConfiguredMachine = tuple[Topology, LibrarySettings]
"""A machine, and what its library was told."""


def differences(op: str, one: ConfiguredMachine, other: ConfiguredMachine) -> tuple[str, ...]:
    """Say why times of a collective in one run tell little of the other on the same hardware.

    A version that is not given is not held against a run.

    Returns
    -------
    tuple of str
        Empty where nothing speaks against it.
    """
    return (*settings_differences(op, one[1], other[1]), *_transport_differences(one, other))


def settings_differences(op: str, one: LibrarySettings, other: LibrarySettings) -> tuple[str, ...]:
    """The part of `differences` that settings alone show."""
    return (*_choice_differences(op, one, other), *_version_differences(one, other))


def _choice_differences(op: str, one: LibrarySettings, other: LibrarySettings) -> Iterator[str]:
    for name, read in (
        ("NCCL_ALGO", LibrarySettings.algorithms),
        ("NCCL_PROTO", LibrarySettings.protocols),
    ):
        here, there = read(one, op), read(other, op)
        if here != there:
            yield f"{name} {_join_names(here)} against {_join_names(there)}"
    for name, own in _difference_rules().switches.items():
        ours, theirs = (bool(int(s.env.get(name, own))) for s in (one, other))
        if ours != theirs:
            yield f"{name}={int(ours)} against {int(theirs)}"


def _version_differences(one: LibrarySettings, other: LibrarySettings) -> Iterator[str]:
    if one.version is None or other.version is None:
        return
    for release in _difference_rules().rules_changed:
        since = tuple(int(part) for part in release.split("."))
        if (one.release >= since) != (other.release >= since):
            yield f"NCCL {one.version} against {other.version}, whose rules changed with {release}"


def _transport_differences(one: ConfiguredMachine, other: ConfiguredMachine) -> Iterator[str]:
    here, there = (apply_settings(*run) for run in (one, other))
    several = min(here.hosts, there.hosts) > 1
    if several and here.network != there.network:
        yield f"network {here.network} against {there.network}"
    if several and here.gpudirect_rdma != there.gpudirect_rdma:
        yield "NICs that reach GPU memory against NICs that do not"
    pcie = not any("nvlink" in topology.arcs.kinds for topology in (here, there))
    shared = min(topology.gpus_per_host for topology in (here, there)) > 1
    if pcie and shared and peer_paths(here) != peer_paths(there):
        yield "GPUs that copy to each other against GPUs that go through the host's memory"


def _join_names(names: frozenset[str] | None) -> str:
    return "free" if names is None else "/".join(sorted(names)) or "none"
