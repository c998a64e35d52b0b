"""Checks of measurements: can a machine have made them, do two runs measure the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.files import FileModel, load_document
from perfmodel.library.machine import Machine
from perfmodel.library.settings import LibrarySettings
from perfmodel.library.transport import apply_settings, peer_paths
from perfmodel.measure.record import Measurement
from perfmodel.topology.from_text.gpu_text import read_gpu
from perfmodel.topology.from_text.parts import hardware_parts
from perfmodel.topology.model import Topology

PROCESSES = "cpu"
"""Generation of what takes a GPU's place where ranks are processes that compute on a CPU."""

OTHERS_PERCENT = 5
"""Percent of the cores in use by others that is reported: less is within the run spread."""


def faults_of(measurement: Measurement, machine: Machine, file: str) -> Iterator[Fault]:
    """Everything that shows that the measurement was made on another machine."""
    topology = machine.topology

    def fault(field: str, actual: object, allowed: str) -> Fault:
        return Fault(field, str(actual), allowed, file)

    if measurement.topology is not None and measurement.topology != topology.template:
        yield fault("topology", repr(measurement.topology), f"{topology.template!r}, as asked")
    if measurement.backend == "device":
        yield fault("backend", "'device'", "'gloo' or 'nccl': collectives of ranks")
    elif machine.library.name not in {measurement.backend, "plain"}:
        yield fault("backend", repr(measurement.backend), f"{machine.library.name!r}, as asked")
    elif measurement.topology is None:
        yield from _backend_faults(measurement, topology, file)
    if not 2 <= measurement.ranks <= len(topology.ranks):
        yield fault(
            "ranks", measurement.ranks, f"2 to {len(topology.ranks)} ranks, as {topology.name} has"
        )
    elif measurement.hosts is not None and measurement.hosts != _hosts(measurement, topology):
        hosts = _hosts(measurement, topology)
        allowed = f"{hosts}, over which {topology.name} spreads {measurement.ranks} ranks"
        yield fault("hosts", measurement.hosts, allowed)
    bad = [row for row in measurement.rows if row.median_s <= 0 or row.nbytes <= 0]
    if bad:
        actual = f"{len(bad)} rows with a size or a median time of zero or less"
        yield fault("rows", actual, "sizes and times above zero")


def doubts(
    measurements: Sequence[Measurement], topology: Topology, files: Sequence[str]
) -> list[str]:
    """Reasons to doubt that these measurements are of this machine, or all of one machine.

    Parameters
    ----------
    measurements : sequence of Measurement
    topology : Topology
    files : sequence of str
        Name of each measurement.
    """
    reasons = []
    silent = [
        file
        for file, measurement in zip(files, measurements, strict=True)
        if measurement.topology is None
    ]
    if silent:
        reasons.append(
            f"{', '.join(silent)} does not say which template describes the machine it was made "
            f"on ('perfmodel measure --topology' records it): taken for {topology.template}"
        )
    first = measurements[0]
    model = topology.gpu.name.split("-")[0]
    for file, measurement in zip(files, measurements, strict=True):
        gpu = measurement.machine.get("gpu", "")
        if gpu and model not in gpu.lower().replace(" ", ""):
            reasons.append(f"{file} was measured on {gpu}; {topology.template} has {model}")
        busy = measurement.machine.get("other_work", "")
        share = busy.partition(" ")[0]
        if share.isdecimal() and int(share) >= OTHERS_PERCENT:
            reasons.append(f"other work kept {busy} busy while {file} was measured")
        for field in ("cpu", "cores", "gpu"):
            own, other = measurement.machine.get(field), first.machine.get(field)
            if own != other:
                reasons.append(f"{file} was measured on {field} {own}, {files[0]} on {other}")
    return reasons


def _hosts(measurement: Measurement, topology: Topology) -> int:
    return -(-measurement.ranks // topology.gpus_per_host)


def _backend_faults(measurement: Measurement, topology: Topology, file: str) -> Iterator[Fault]:
    """Gloo between processes where the machine has GPUs, NCCL where it has none."""
    processes = topology.gpu.generation == PROCESSES
    where = f"machine ({topology.template} as asked)"
    if measurement.backend == "nccl" and processes:
        yield Fault(where, "nccl between GPUs", "gloo between processes on a CPU", file)
    elif measurement.backend == "gloo" and not processes and topology.gpus_per_host > 1:
        processor = _name_processor(measurement)
        allowed = f"GPUs that share a host; for {processor} see --topology cpu-loopback"
        yield Fault(where, "gloo between processes on a CPU", allowed, file)


def _name_processor(measurement: Measurement) -> str:
    cores, cpu = (
        measurement.machine.get("cores"),
        measurement.machine.get("cpu", "processes on a CPU"),
    )
    return f"{cores} cores of {cpu}" if cores else cpu


class _Differences(FileModel):
    rules_changed: Mapping[str, str]
    switches: Mapping[str, int]


@cache
def _difference_rules() -> _Differences:
    return load_document(_Differences, Path(__file__).parent / "compatible.yaml")


ConfiguredMachine = tuple[Topology, LibrarySettings]
"""A machine and the settings of its library."""


def differences(op: str, first: ConfiguredMachine, second: ConfiguredMachine) -> tuple[str, ...]:
    """Reasons why times of a collective in two runs on the same hardware are not comparable.

    A version that is not given counts as the same.

    Returns
    -------
    tuple of str
        Empty where they are comparable.
    """
    return (*settings_differences(op, first[1], second[1]), *_transport_differences(first, second))


def settings_differences(
    op: str, first: LibrarySettings, second: LibrarySettings
) -> tuple[str, ...]:
    """The part of `differences` that settings alone show."""
    return (*_choice_differences(op, first, second), *_version_differences(first, second))


def _choice_differences(op: str, first: LibrarySettings, second: LibrarySettings) -> Iterator[str]:
    for name, read in (
        ("NCCL_ALGO", LibrarySettings.algorithms),
        ("NCCL_PROTO", LibrarySettings.protocols),
    ):
        names, others = read(first, op), read(second, op)
        if names != others:
            yield f"{name} {_join_names(names)} against {_join_names(others)}"
    for name, default in _difference_rules().switches.items():
        a, b = (int(bool(int(s.env.get(name, default)))) for s in (first, second))
        if a != b:
            yield f"{name}={a} against {b}"


def _version_differences(first: LibrarySettings, second: LibrarySettings) -> Iterator[str]:
    if first.version is None or second.version is None:
        return
    for release in _difference_rules().rules_changed:
        since = tuple(int(part) for part in release.split("."))
        if (first.release >= since) != (second.release >= since):
            versions = f"NCCL {first.version} against {second.version}"
            yield f"{versions}, whose rules changed with {release}"


def _transport_differences(first: ConfiguredMachine, second: ConfiguredMachine) -> Iterator[str]:
    topologies = a, b = tuple(apply_settings(*machine) for machine in (first, second))
    several = min(a.hosts, b.hosts) > 1
    if several and a.network != b.network:
        yield f"network {a.network} against {b.network}"
    if several and a.gpudirect_rdma != b.gpudirect_rdma:
        yield "NICs that reach GPU memory against NICs that do not"
    pcie = not any("nvlink" in topology.arcs.kinds for topology in topologies)
    shared = min(topology.gpus_per_host for topology in topologies) > 1
    if pcie and shared and peer_paths(a) != peer_paths(b):
        yield "GPUs that copy to each other against GPUs that go through the host's memory"


def _join_names(names: frozenset[str] | None) -> str:
    return "free" if names is None else "/".join(sorted(names)) or "none"


def unlike_gpus(devices: Sequence[str], topology: Topology) -> tuple[str, ...]:
    """Names of GPUs in a log, if all of them are of other models than those of a topology.

    A name that the table of GPUs does not know counts as another if it does not contain the
    topology's own.
    """
    parts = hardware_parts().gpus
    name = topology.gpu.name
    own = parts[name].spelled if name in parts else name

    def is_own(device: str) -> bool:
        try:
            spelled = read_gpu(device).part.spelled
        except InputError:
            spelled = device
        folded = [re.sub(r"[\s_-]+", "", text.lower()) for text in (spelled, own)]
        return folded[0] == folded[1] or (name not in parts and folded[1] in folded[0])

    others = tuple(dict.fromkeys(device for device in devices if not is_own(device)))
    return others if len(others) == len(set(devices)) else ()
