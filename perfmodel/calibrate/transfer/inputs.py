"""From measurement files to the input of a fit: machines, settings, rows, rates of links."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.calibrate.checks import ConfiguredMachine, differences
from perfmodel.calibrate.profile import Profile, Source
from perfmodel.calibrate.readers import Found, LinkMatrix, Sweep, SweepRow
from perfmodel.calibrate.transfer.fit import SweepRun, fit_profile
from perfmodel.calibrate.transfer.link_matrices import seen_links
from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.library.lowering.rings import OWN_ALGORITHM
from perfmodel.library.settings import LibrarySettings
from perfmodel.measure.record import Measurement
from perfmodel.topology.model import Topology
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
        """How many ranks that makes, if both numbers are given."""
        if self.nodes is None or self.gpus_per_node is None:
            return None
        return self.nodes * self.gpus_per_node


@dataclass
class Gathered:
    """What a fit takes, and what is to be told about it."""

    observations: list[SweepRun] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    matrices: list[LinkMatrix] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def profile_of(
    found: Sequence[Found], asked: MachineRequest, *, name: str, paths: Sequence[Path] = ()
) -> Profile:
    """Fit a profile to sweeps, matrices and NCCL's own measurements of one kind of machine.

    Parameters
    ----------
    found : sequence of Found
    asked : MachineRequest
    name : str
        Of the profile.
    paths : sequence of Path
        Where each of `found` lies, for its check sum; default: none is given.

    Raises
    ------
    InputError
        Files that this machine cannot have made; every fault of all of them at once.
    """
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths] or [""] * len(found)
    gathered = Gathered()
    faults: list[Fault] = []
    machines: dict[tuple[int, int | None], Topology] = {}
    for one, sha256 in zip(found, sums, strict=True):
        try:
            _gather(one, asked, machines, gathered, sha256)
        except InputError as error:
            faults += error.located(one.file).faults
    if faults:
        raise InputError(faults)
    whole = next(iter(machines.values()), None) or _machine(asked, 1, None, machines)
    seen, unused = seen_links(gathered.matrices, whole) if gathered.matrices else ([], ())
    profile = fit_profile(
        gathered.observations, topology=whole, name=name, files=gathered.files,
        sources=gathered.sources, seen=seen,
    )  # fmt: skip
    assert profile.transfer is not None
    notes = (*gathered.notes, *_unlike(gathered), *unused)
    return profile.model_copy(
        update={"transfer": profile.transfer.model_copy(update={"notes": notes})}
    )


def _unlike(gathered: Gathered) -> list[str]:
    """Runs whose library was told otherwise than in the first run of the same collective."""
    found, first = [], dict[str, tuple[str, ConfiguredMachine]]()
    for file, (topology, settings, op, _) in zip(
        gathered.files, gathered.observations, strict=True
    ):
        other, its = first.setdefault(op, (file, (topology, settings)))
        why = "; ".join(differences(op, (topology, settings), its))
        if why:
            found.append(f"{file} and {other} are hardly of one machine: {why}")
    return found


def _gather(
    one: Found,
    asked: MachineRequest,
    machines: dict[tuple[int, int | None], Topology],
    gathered: Gathered,
    sha256: str,
) -> None:
    faults: list[Fault] = []
    if one.measurement is not None:
        _measurement(one, one.measurement, asked, machines, gathered, sha256)
    for sweep in _preferred(one.sweeps):
        try:
            topology, settings = _placed(sweep, asked, machines)
        except InputError as error:
            faults += error.faults
            continue
        gathered.observations.append((topology, settings, sweep.op, sweep.rows))
        gathered.files.append(one.file)
        gathered.sources.append(_source(sweep, one.file, sha256))
        gathered.notes += _doubts(sweep, one.file, topology)
    gathered.matrices += one.matrices
    if faults:
        raise InputError(faults)


def _preferred(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Out of place where a table has both: that is what NCCL's own numbers are quoted for."""
    both = {(s.op, s.line, s.ranks, s.dtype) for s in sweeps if not s.in_place}
    return [s for s in sweeps if not s.in_place or (s.op, s.line, s.ranks, s.dtype) not in both]


def _placed(
    sweep: Sweep, asked: MachineRequest, machines: dict[tuple[int, int | None], Topology]
) -> tuple[Topology, LibrarySettings]:
    """The machine that made a sweep, and what its library was told."""
    if sweep.op not in OWN_ALGORITHM:
        raise InputError(
            Fault("collective", repr(sweep.op), allowed_names(OWN_ALGORITHM, sweep.op))
        )
    nodes = (
        asked.nodes or sweep.nodes or max(sweep.ranks // (asked.gpus_per_node or sweep.ranks), 1)
    )
    if sweep.ranks % nodes:
        found = f"{sweep.ranks} ranks on {nodes} nodes"
        raise InputError(Fault("nodes", found, "as many ranks on each (--nodes)"))
    each = sweep.ranks // nodes
    if (asked.gpus_per_node or each) != each:
        found = f"{sweep.ranks} ranks on {nodes} nodes: {each} on each"
        raise InputError(Fault("--gpus-per-node", str(asked.gpus_per_node), f"{each} ({found})"))
    settings = LibrarySettings(
        version=sweep.version, env=dict(sweep.env), one_process=bool(sweep.one_process)
    )
    return _machine(asked, nodes, each, machines), settings


def _machine(
    asked: MachineRequest,
    nodes: int,
    each: int | None,
    machines: dict[tuple[int, int | None], Topology],
) -> Topology:
    if (nodes, each) not in machines:
        fabric = asked.fabric if nodes > 1 else None
        machines[nodes, each] = build_topology(
            asked.topology, hosts=nodes, fabric=fabric, gpus_per_host=each
        )
    return machines[nodes, each]


def _measurement(
    one: Found, made: Measurement, asked: MachineRequest,
    machines: dict[tuple[int, int | None], Topology], gathered: Gathered, sha256: str,
) -> None:  # fmt: skip
    """NCCL's rows of our own measurement, as a sweep."""
    rows = tuple(SweepRow(nbytes, time_s) for nbytes, time_s in made.times("library"))
    if made.backend != "nccl" or not rows:
        found = f"a measurement of {made.backend!r} beside files of nccl-tests and the like"
        allowed = "one of NCCL's own collective; fit others by themselves"
        raise InputError(Fault("backend", found, allowed))
    hosts = made.hosts or 1
    version = made.versions.get("nccl")
    sweep = Sweep(
        op=made.collective, ranks=made.ranks, nodes=hosts, gpus_per_node=made.ranks // hosts,
        dtype="float", in_place=True, rows=rows, version=version, one_process=False,
        tool="perfmodel measure", file=one.file, started=made.started,
    )  # fmt: skip
    topology, settings = _placed(sweep, asked, machines)
    gathered.observations.append((topology, settings, sweep.op, rows))
    gathered.files.append(one.file)
    gathered.sources.append(_source(sweep, one.file, sha256))


def _source(sweep: Sweep, file: str, sha256: str) -> Source:
    versions: Mapping[str, str] = {"nccl": sweep.version} if sweep.version else {}
    return Source(
        file=file,
        sha256=sha256,
        backend="nccl",
        collective=sweep.op,
        algorithm="the library's own",
        ranks=sweep.ranks,
        started=sweep.started,
        machine={"gpu": ", ".join(sweep.devices) or "not named", "tool": sweep.tool},
        versions=dict(versions),
    )


def _doubts(sweep: Sweep, file: str, topology: Topology) -> list[str]:
    found = [f"{file}: {note}" for note in sweep.notes]
    model = topology.gpu.name.split("-")[0]
    others = [d for d in sweep.devices if model not in d.lower().replace(" ", "").replace("-", "")]
    if others and len(others) == len(sweep.devices):
        found.append(f"{file} was measured on {', '.join(others)}; {topology.template} has {model}")
    if sweep.nodes is None:
        found.append(f"{file} does not list its hosts: taken for {topology.hosts}")
    return found
