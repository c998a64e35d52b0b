"""From measurement files to the input of a fit: machines, settings, rows, rates of links.

Rates of links from matrices of copies between GPUs, and between host and GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
from pydantic import Field

from perfmodel.calibrate.checks import ConfiguredMachine, differences, unlike_gpus
from perfmodel.calibrate.parameters import Parameter
from perfmodel.calibrate.profile import Profile, Source
from perfmodel.calibrate.readers import LinkMatrix, MeasurementFile, Sweep, SweepRow
from perfmodel.calibrate.readers.sweep_records import refuse, without_spikes
from perfmodel.calibrate.transfer.fit import SweepRun, fit_profile
from perfmodel.calibrate.transfer.priors import DirectMeasurement
from perfmodel.errors import (
    Fault,
    InputError,
    TopologyError,
    allowed_names,
    raise_faults,
    refuse_if,
)
from perfmodel.files import FileModel, collect_faults, shipped
from perfmodel.files.validate import in_file
from perfmodel.library.lowering.rings import OWN_ALGORITHM
from perfmodel.library.nccl.communicator import MOST_OF_ONE_HOST
from perfmodel.library.settings import LibrarySettings, settings_of
from perfmodel.measure.job import Measurement
from perfmodel.memo import applying, first_applying, grouped, once
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """What the user says about the machine; None: as the file says.

    Parameters
    ----------
    topology : str
        Template.
    nodes, gpus_per_node : int or None
    fabric : str or None
        Between several nodes.
    """

    topology: str
    nodes: int | None = None
    gpus_per_node: int | None = None
    fabric: str | None = None

    @property
    def ranks(self) -> int | None:
        """Number of ranks, if both numbers are given."""
        return self.nodes * self.gpus_per_node if self.nodes and self.gpus_per_node else None


@dataclass
class _FitInput:
    """What a fit takes from all files, and notes on them.

    `unused` are sweeps of what is no collective (sends between pairs), `topologies` those built so
    far, by nodes and GPUs of each.
    """

    request: MachineRequest
    runs: list[SweepRun] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    matrices: list[LinkMatrix] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unused: list[Fault] = field(default_factory=list)
    topologies: dict[tuple[int, int | None], Topology] = field(default_factory=dict)

    def add_file(self, measured: MeasurementFile, sha256: str) -> None:
        """Add everything that a file holds; raises InputError with all its faults."""
        file, faults = measured.file, list[Fault]()
        if measured.measurement is not None:
            self._add_sweep(_sweep_of(measured.measurement, file), file, sha256)
        for sweep in prefer_out_of_place(measured.sweeps):
            if sweep.op in OWN_ALGORITHM:
                with collect_faults(faults):
                    self.notes += _doubts(sweep, file, self._add_sweep(sweep, file, sha256))
            else:
                allowed = allowed_names(OWN_ALGORITHM, sweep.op)
                line = sweep.line or None
                self.unused.append(Fault("collective", repr(sweep.op), allowed, file, line))
        self.matrices += measured.matrices
        raise_faults(faults)

    def _add_sweep(self, sweep: Sweep, file: str, sha256: str) -> Topology:
        nodes, gpus_per_node = layout_of(
            sweep, self.request, self.build_topology(1, None).gpus_per_host
        )
        settings = settings_of_sweep(sweep)
        topology = self.build_topology(nodes, gpus_per_node)
        self.runs.append((topology, settings, sweep.op, sweep.rows))
        self.files.append(file)
        self.sources.append(
            Source(
                file=file,
                sha256=sha256,
                backend="nccl",
                collective=sweep.op,
                algorithm="the library's own",
                ranks=sweep.ranks,
                started=sweep.started,
                machine={"gpu": ", ".join(sweep.devices) or "not named", "tool": sweep.tool},
                versions={"nccl": sweep.version} if sweep.version else {},
            )
        )
        return topology

    def build_topology(self, nodes: int, gpus_per_node: int | None) -> Topology:
        """Build the machine of some nodes, once for all files."""
        fabric = self.request.fabric if nodes > 1 else None
        return once(
            self.topologies,
            (nodes, gpus_per_node),
            lambda: build_topology(
                self.request.topology, hosts=nodes, fabric=fabric, gpus_per_host=gpus_per_node
            ),
        )

    def compare_runs(self) -> list[str]:
        """Notes on runs with other settings than the first run of the same collective."""
        notes, first = list[str](), dict[str, tuple[str, ConfiguredMachine]]()
        for file, (topology, settings, op, _) in zip(self.files, self.runs, strict=True):
            other_file, other = first.setdefault(op, (file, (topology, settings)))
            reasons = "; ".join(differences(op, (topology, settings), other))
            notes += applying(
                (reasons, f"{file} and {other_file} are hardly of one machine: {reasons}")
            )
        return notes


def profile_of(
    files: Sequence[MeasurementFile],
    request: MachineRequest,
    *,
    name: str,
    paths: Sequence[Path] = (),
) -> Profile:
    """Fit a profile to sweeps, matrices and NCCL's own measurements of one kind of machine.

    Parameters
    ----------
    files : sequence of MeasurementFile
    request : MachineRequest
    name : str
        Of the profile.
    paths : sequence of Path
        Path of each file, for its check sum; default: no check sums.

    Raises
    ------
    InputError
        Files that this machine cannot have made; every fault of all of them at once.
    """
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths] or [""] * len(files)
    inputs, faults = _FitInput(request), list[Fault]()
    for file, sha256 in zip(files, sums, strict=True):
        with collect_faults(faults, file.file):
            inputs.add_file(file, sha256)
    runs, matrices = inputs.runs, inputs.matrices
    if faults or (inputs.unused and not runs and not matrices):
        raise InputError(faults or inputs.unused)
    topology = runs[0][0] if runs else inputs.build_topology(1, None)
    direct, unused = measure_links(matrices, topology) if matrices else ([], ())
    if matrices and not direct and not runs:
        raise InputError(_faults_of_unused(matrices, unused))
    with in_file(", ".join(dict.fromkeys(file.file for file in files))):
        profile = fit_profile(
            runs,
            topology=topology,
            name=name,
            files=inputs.files,
            sources=inputs.sources,
            direct=direct,
        )
    tables = (
        f"{fault.file}: the table of {fault.found} is not used: no collective of the model"
        for fault in inputs.unused
    )
    notes = tuple(dict.fromkeys((*inputs.notes, *tables, *inputs.compare_runs(), *unused)))
    (fit,) = profile.fits
    return profile.model_copy(update={"fits": (fit.model_copy(update={"notes": notes}),)})


def _faults_of_unused(matrices: Sequence[LinkMatrix], reasons: Sequence[str]) -> list[Fault]:
    """Return a fault for each file: none of its matrices says how fast a link is."""
    actual = "none that tells the rate of a link (" + "; ".join(reasons) + ")"
    tests = " or ".join(repr(test) for test in sorted(SINGLE_COPY_TESTS)[:2])
    allowed = f"copies of one pair at a time with peer access, such as {tests}"
    files = dict.fromkeys(matrix.file for matrix in matrices)
    return [Fault("matrix", actual, allowed, file) for file in files]


def prefer_out_of_place(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Take times out of place where a table has both: NCCL's own numbers are quoted for them.

    Where only the time out of place is a spike (the first iterations of a run often are), that in
    place stands for it.
    """

    def table_of(sweep: Sweep) -> tuple[str, int, int, str]:
        return sweep.op, sweep.line, sweep.ranks, sweep.dtype

    in_place = {table_of(sweep): sweep for sweep in sweeps if sweep.in_place}
    both = {table_of(sweep) for sweep in sweeps if not sweep.in_place}
    return [
        sweep if sweep.in_place else _without_spikes(sweep, in_place.get(table_of(sweep)))
        for sweep in sweeps
        if not sweep.in_place or table_of(sweep) not in both
    ]


def _without_spikes(sweep: Sweep, in_place: Sweep | None) -> Sweep:
    others_s = {row.nbytes: row.time_s for row in in_place.rows} if in_place else {}
    rows = without_spikes(replace(row, in_place_s=others_s.get(row.nbytes)) for row in sweep.rows)
    sizes = ", ".join(
        f"{row.nbytes:,} B" for row, old in zip(rows, sweep.rows, strict=True) if row != old
    )
    note = f"times in place taken for {sizes}: out of place they are spikes"
    return replace(sweep, rows=rows, notes=(*sweep.notes, note)) if sizes else sweep


def settings_of_sweep(sweep: Sweep, given: LibrarySettings | None = None) -> LibrarySettings:
    """Return version and environment of NCCL as a log states them; what is `given` goes before.

    Raises `InputError`: what NCCL does not know.
    """
    given = given or LibrarySettings()
    return settings_of(
        version=given.version or sweep.version,
        env={**sweep.env, **given.env},
        one_process=given.one_process or bool(sweep.one_process),
        fields=("NCCL's version", "NCCL's environment"),
    )


def layout_of(sweep: Sweep, request: MachineRequest, largest: int) -> tuple[int, int]:
    """Return nodes of the machine that made a sweep, and GPUs of each; one has `largest` GPUs.

    Where neither the log nor the user says, ranks that are more than those of a node filled several
    of them. The hosts of a log are the trays of a rack whose NVLinks join all of its GPUs.
    """
    ranks, requested, listed = sweep.ranks, request.gpus_per_node, sweep.nodes
    filled = largest if ranks % largest == 0 else ranks
    if listed and largest > MOST_OF_ONE_HOST >= ranks // listed:
        listed = max(ranks // filled, 1)
    nodes = request.nodes or listed or max(ranks // (requested or filled), 1)
    each, spread = ranks // nodes, f"{ranks} ranks on {nodes} nodes"
    refuse(
        None,
        (ranks % nodes, "nodes", spread, "as many ranks on each (--nodes)"),
        (
            requested not in (None, 0, each),
            "--gpus-per-node",
            str(requested),
            f"{each} ({spread}: {each} on each)",
        ),
    )
    return nodes, each


def _sweep_of(measurement: Measurement, file: str) -> Sweep:
    """Return NCCL's rows of our own measurement, as a sweep."""
    rows = tuple(SweepRow(nbytes, time_s) for nbytes, time_s in measurement.times("library"))
    refuse_if(
        measurement.backend != "nccl" or not rows,
        "backend",
        f"a measurement of {measurement.backend!r} beside files of nccl-tests and the like",
        "one of NCCL's own collective; fit others by themselves",
    )
    return Sweep(
        op=measurement.collective,
        ranks=measurement.ranks,
        nodes=measurement.hosts or 1,
        dtype="float",
        in_place=True,
        rows=rows,
        version=measurement.versions.get("nccl"),
        one_process=False,
        tool="perfmodel measure",
        file=file,
        started=measurement.started,
    )


def _doubts(sweep: Sweep, file: str, topology: Topology) -> list[str]:
    others = ", ".join(unlike_gpus(sweep.devices, topology))
    measured = f"{file} was measured on {others}; {topology.template} has {topology.gpu.name}"
    unlisted = f"{file} does not list its hosts: taken for {topology.hosts}"
    return [
        *(f"{file}: {note}" for note in sweep.notes),
        *([measured] if others else []),
        *([unlisted] if sweep.nodes is None else []),
    ]


SINGLE_COPY_TESTS = frozenset(
    {
        "Unidirectional P2P=Enabled Bandwidth",
        "device_to_device_memcpy_read_ce",
        "device_to_device_memcpy_write_ce",
        "host_to_device_memcpy_ce",
        "device_to_host_memcpy_ce",
    }
)
"""Tests in which one pair at a time is busy, in one direction."""


LARGEST_RATIO = 1.5
"""Times what copies usually reach of a link, from which on it is another link: the raw rate of
NVLink and PCIe is up to 1.35 times what copies reach."""


class CopyRate(FileModel):
    """What copies usually reach, as a multiple of what the templates say."""

    usual: float = Field(gt=0)
    source: str


class CopyRates(FileModel):
    """`CopyRate` by generation of GPU ("other" for those not named), and their spread."""

    nvlink: dict[str, CopyRate]
    pcie: dict[str, CopyRate]
    deviation: float = Field(gt=0)
    deviation_source: str

    def multiple(self, kind: str, generation: str) -> float | None:
        """The multiple for a kind of link; None where copies say nothing about such links."""
        rates = {"nvlink": self.nvlink, "pcie": self.pcie}.get(kind, {})
        rate = rates.get(generation, rates.get("other"))
        return None if rate is None else rate.usual


copy_rates = shipped(CopyRates, __file__, "copies.yaml")
"""Reads the shipped multiples."""


def measure_links(
    matrices: Sequence[LinkMatrix], topology: Topology
) -> tuple[list[DirectMeasurement], tuple[str, ...]]:
    """Factors of kinds of link from copies, and notes on matrices that were not used.

    GPUs are taken to be numbered as in the topology. A copy is taken to be as fast as the narrowest
    link on its route; the median over pairs counts.

    Raises
    ------
    InputError
        More GPUs than a host of the topology has; every fault at once.
    """
    size = topology.gpus_per_host
    faults = [
        Fault(
            "matrix",
            f"{len(m.values[0])} GPUs in {m.test!r}",
            f"up to {size}, as a host of {topology.name} has",
            m.file,
        )
        for m in matrices
        if len(m.values[0]) > size
    ]
    faults += [
        Fault(
            "GPU",
            f"{', '.join(others)} in {m.test!r}",
            f"{topology.gpu.name}, as {topology.template} has",
            m.file,
        )
        for m in matrices
        if (others := unlike_gpus(m.devices, topology))
    ]
    raise_faults(dict.fromkeys(faults))
    reasons = [(matrix, _reason_unused(matrix)) for matrix in matrices]
    notes = [f"{matrix.test}: {reason}" for matrix, reason in reasons if reason is not None]
    used = (matrix for matrix, reason in reasons if reason is None)
    ratios = grouped(chain.from_iterable(_ratios(matrix, topology) for matrix in used))
    direct = [_direct_measurement(kind, np.log(values)) for kind, values in sorted(ratios.items())]
    notes += applying(
        (not direct, "no copy crossed a link whose usual share of a copy's rate is known")
    )
    return direct, tuple(dict.fromkeys(notes))


def _direct_measurement(kind: str, logs: np.ndarray) -> DirectMeasurement:
    spread = float(np.quantile(np.abs(logs - np.median(logs)), 0.68)) if len(logs) > 2 else 0.0
    deviation = float(np.hypot(copy_rates().deviation, spread / np.sqrt(len(logs))))
    return DirectMeasurement(Parameter("bandwidth", kind), float(np.median(logs)), deviation)


def _reason_unused(matrix: LinkMatrix) -> str | None:
    """Say why a matrix says nothing about the rate of a link; None where it does."""
    return first_applying(
        (
            matrix.what == "latency",
            "the latency of one copy is not that of a step in a collective's kernel",
        ),
        (
            matrix.ends == "gpu-gpu" and not matrix.p2p,
            "without peer access: a copy through host memory, which collectives do otherwise",
        ),
        (
            matrix.test not in SINGLE_COPY_TESTS,
            "several copies at a time, or by kernels: the links' own rate does not show",
        ),
        (True, None),
    )


def _ratios(matrix: LinkMatrix, topology: Topology) -> Iterator[tuple[str, float]]:
    """Kind of the narrowest link of each pair, and the copy's rate over the usual one.

    Raises `InputError`: a rate that no such link has.
    """
    router = Router(topology)
    rates = topology.arcs.bandwidth_Bps
    for row, values in enumerate(matrix.values):
        for column, rate_Bps in enumerate(values):
            gpu = topology.ranks[column]
            if rate_Bps is None or (matrix.ends == "gpu-gpu" and row == column):
                continue
            try:
                cpu = router.nearest_cpu(gpu) if matrix.ends == "host-gpu" else None
                route = router.route(cpu or topology.ranks[row], gpu)
            except TopologyError:
                continue
            narrowest = min(route, key=lambda arc: rates[arc])
            kind = topology.arcs.kinds[narrowest]
            multiple = copy_rates().multiple(kind, topology.gpu.generation)
            if multiple is not None:
                ratio = rate_Bps / (multiple * float(rates[narrowest]))
                refuse_if(
                    ratio > LARGEST_RATIO,
                    "matrix",
                    f"a copy {ratio:.2g} times as fast as {kind} is in {topology.template}",
                    f"at most {LARGEST_RATIO:g} times: the machine that was measured (--topology)",
                    matrix.file,
                )
                yield kind, ratio
