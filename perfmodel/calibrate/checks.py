"""Checks of measurements: can a machine have made them, do two runs measure the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from perfmodel.errors import Fault, InputError, failed
from perfmodel.files import FileModel, shipped
from perfmodel.library.machine import Machine
from perfmodel.library.settings import LibrarySettings
from perfmodel.library.transport import apply_settings, peer_paths
from perfmodel.measure.job import Measurement
from perfmodel.memo import applying
from perfmodel.topology.from_text.gpu_text import read_gpu
from perfmodel.topology.from_text.parts import hardware_parts
from perfmodel.topology.model import Topology

PROCESSES = "cpu"
"""Generation of what takes a GPU's place where ranks are processes that compute on a CPU."""

OTHERS_PERCENT = 5
"""Percent of the cores in use by others that is reported: less is within the run spread."""


def faults_of(measurement: Measurement, machine: Machine, file: str) -> list[Fault]:
    """Return everything that shows that the measurement was made on another machine."""
    topology, backend, ranks = machine.topology, measurement.backend, measurement.ranks
    most, hosts = len(topology.ranks), -(-ranks // topology.gpus_per_host)
    template, library = topology.template, machine.library.name
    bad = sum(row.median_s <= 0 or row.nbytes <= 0 for row in measurement.rows)
    is_other = backend != "device" and library not in {backend, "plain"}
    fits = 2 <= ranks <= most
    faults = failed(
        (
            measurement.topology not in (None, template),
            "topology",
            repr(measurement.topology),
            f"{template!r}, as asked",
        ),
        (backend == "device", "backend", "'device'", "'gloo' or 'nccl': collectives of ranks"),
        (is_other, "backend", repr(backend), f"{library!r}, as asked"),
        *(
            ()
            if is_other or measurement.topology is not None
            else _backend_problems(measurement, topology)
        ),
        (not fits, "ranks", str(ranks), f"2 to {most} ranks, as {topology.name} has"),
        (
            fits and measurement.hosts not in (None, hosts),
            "hosts",
            str(measurement.hosts),
            f"{hosts}, over which {topology.name} spreads {ranks} ranks",
        ),
        (
            bad,
            "rows",
            f"{bad} rows with a size or a median time of zero or less",
            "sizes and times above zero",
        ),
    )
    return [replace(fault, file=file) for fault in faults]


def doubts(
    measurements: Sequence[Measurement], topology: Topology, files: Sequence[str]
) -> list[str]:
    """Return reasons to doubt that these measurements are of this machine, or all of one machine.

    Parameters
    ----------
    measurements : sequence of Measurement
    topology : Topology
    files : sequence of str
        Name of each measurement.
    """
    named = list(zip(files, measurements, strict=True))
    silent = ", ".join(file for file, measurement in named if measurement.topology is None)
    first, model = measurements[0].machine, topology.gpu.name.split("-")[0]
    unsaid = (
        f"{silent} does not say which template describes the machine it was made "
        f"on ('perfmodel measure --topology' records it): taken for {topology.template}"
    )
    reasons = [unsaid] if silent else []
    for file, measurement in named:
        gpu, busy = (measurement.machine.get(field, "") for field in ("gpu", "other_work"))
        share = busy.partition(" ")[0]
        reasons += applying(
            (
                gpu and model not in gpu.lower().replace(" ", ""),
                f"{file} was measured on {gpu}; {topology.template} has {model}",
            ),
            (
                share.isdecimal() and int(share) >= OTHERS_PERCENT,
                f"other work kept {busy} busy while {file} was measured",
            ),
        )
        reasons += [
            f"{file} was measured on {field} {own}, {files[0]} on {first.get(field)}"
            for field in ("cpu", "cores", "gpu")
            if (own := measurement.machine.get(field)) != first.get(field)
        ]
    return reasons


def _backend_problems(
    measurement: Measurement, topology: Topology
) -> tuple[tuple[bool, str, str, str], ...]:
    """Find gloo between processes where the machine has GPUs, and NCCL where it has none."""
    processes, backend = topology.gpu.generation == PROCESSES, measurement.backend
    where, on_cpu = f"machine ({topology.template} as asked)", "gloo between processes on a CPU"
    cpu = measurement.machine.get("cpu", "processes on a CPU")
    cores = f"{measurement.machine['cores']} cores of " if measurement.machine.get("cores") else ""
    has_gpus = not processes and topology.gpus_per_host > 1
    allowed = f"GPUs that share a host; for {cores}{cpu} see --topology cpu-loopback"
    return (
        (backend == "nccl" and processes, where, "nccl between GPUs", on_cpu),
        (backend == "gloo" and has_gpus, where, on_cpu, allowed),
    )


class _Differences(FileModel):
    rules_changed: Mapping[str, str]
    switches: Mapping[str, int]


_difference_rules = shipped(_Differences, __file__, "compatible.yaml")


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


def settings_differences(op: str, first: LibrarySettings, second: LibrarySettings) -> Iterator[str]:
    """Yield the part of `differences` that settings alone show."""
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
    versions = f"NCCL {first.version} against {second.version}"
    known = first.version is not None and second.version is not None
    for release in _difference_rules().rules_changed if known else ():
        since = tuple(int(part) for part in release.split("."))
        if (first.release >= since) != (second.release >= since):
            yield f"{versions}, whose rules changed with {release}"


def _transport_differences(first: ConfiguredMachine, second: ConfiguredMachine) -> Iterator[str]:
    a, b = (apply_settings(*machine) for machine in (first, second))
    several, several_gpus = min(a.hosts, b.hosts) > 1, min(a.gpus_per_host, b.gpus_per_host) > 1
    pcie = not any("nvlink" in topology.arcs.kinds for topology in (a, b))
    return applying(
        (several and a.network != b.network, f"network {a.network} against {b.network}"),
        (
            several and a.gpudirect_rdma != b.gpudirect_rdma,
            "NICs that reach GPU memory against NICs that do not",
        ),
        (
            pcie and several_gpus and peer_paths(a) != peer_paths(b),
            "GPUs that copy to each other against GPUs that go through the host's memory",
        ),
    )


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
