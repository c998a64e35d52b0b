"""From the cluster and library sections of a scenario to a Machine, and to alternatives of it.

The alternatives are what an interval of a prediction rests on. Without a profile they are bounds
from how far recorded runs of similar machines were off predictions from datasheets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from perfmodel.errors import Fault, InputError
from perfmodel.files import validate_document
from perfmodel.library.corrections import CollectiveContext, Corrections, band_of, factors_by_band
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.library.settings import LibrarySettings, settings_of
from perfmodel.scenario import ClusterSize, LibrarySection, Scenario, WhatIf
from perfmodel.scenario.sections.node import NodeSection
from perfmodel.studies.run.resolve.limits import check_cluster_size, check_sharing_jobs
from perfmodel.studies.run.resolve.what_if import apply_what_if, what_if_of
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology, with_usual_routing
from perfmodel.topology.templates.spec import FabricSpec, NodeSpec

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

_FIELDS = {
    "topology": "cluster.node",
    "hosts": "cluster.nodes",
    "gpus_per_host": "cluster.gpus_per_node",
    "fabric": "cluster.fabric",
    "library": "library.name",
    "protocol": "library.protocol",
    "env.NCCL_ALGO": "library.algorithm",
    "env.NCCL_PROTO": "library.protocol",
    "profile": "profile",
    "precision": "compute.precision",
    "batch": "training.batch_per_gpu",
    "fidelity": "fidelity",
}
"""Fields of the scenario behind the parameters of the functions that read them."""


def machine(
    scenario: Scenario, node: NodeSpec | Topology, size: ClusterSize, hosts: int | None = None
) -> Machine:
    """Build the cluster at one size, with the library that drives it.

    `hosts`: nodes on the network; default: as many as the job has.
    Raises `InputError`: names file, line and field of the scenario.
    """
    with relocated_errors(scenario, "cluster.nodes"):
        count = (hosts or size.nodes) * size.gpus_per_node
        check_cluster_size(count, _field_of_hosts(scenario, size))
    check_sharing_jobs(scenario, size)
    topology = node if isinstance(node, Topology) else _build(scenario, node, size, hosts)
    if scenario.library.host_step is not None and topology.gpu.generation != "cpu":
        allowed = f"nothing with {topology.gpu.name}, only for processes on CPUs"
        raise scenario.fault("library.host_step", f"{scenario.library.host_step:g} s", allowed)
    return make_machine(
        topology,
        _load_library(scenario.library),
        settings=resolve_settings(scenario),
        channels=scenario.library.channels,
    )


def _build(scenario: Scenario, node: NodeSpec, size: ClusterSize, hosts: int | None) -> Topology:
    """Join nodes by the scenario's fabric."""
    fabric = _resolve_fabric(scenario)
    with relocated_errors(scenario, "cluster"):
        routed = fabric if _names_cables(scenario) else with_usual_routing(node, fabric)
        return build_topology(
            node, hosts=hosts or size.nodes, fabric=routed, gpus_per_host=size.gpus_per_node
        )


def named_node(scenario: Scenario) -> str | NodeSection:
    """Return what `cluster.node` names, with the paths of files beside the scenario."""
    node, origin = scenario.cluster.node, scenario.origin
    if isinstance(node, str):
        return origin.beside(
            "cluster.node" if scenario.cluster.graph is None else "cluster.graph", node
        )
    if node.extends is None:
        return node
    extended = origin.beside("cluster.node.extends", node.extends)
    return node.model_copy(update={"extends": extended})


def _field_of_hosts(scenario: Scenario, size: ClusterSize) -> str:
    """Field that most nodes on the network come from."""
    if scenario.cluster.pool is not None:
        return "cluster.pool"
    nodes = {f"jobs.{at}.nodes": job.nodes for at, job in enumerate(scenario.jobs)}
    nodes["cluster.nodes"] = size.nodes
    return max(nodes, key=nodes.__getitem__)


def _resolve_fabric(scenario: Scenario) -> FabricSpec | str | None:
    """The network between nodes: a shape with what differs, or the path of a fabric's file."""
    section = scenario.cluster.fabric
    if section is None:
        return None
    fields = section.model_dump(exclude_none=True)
    if section.kind.endswith((".yaml", ".yml")):
        overridden = sorted(fields.keys() - {"kind"})
        if overridden:
            conflict = f"{', '.join(overridden)} beside the file {section.kind!r}"
            allowed = "a file alone: it says all of its fabric"
            raise InputError(scenario.origin.fault("cluster.fabric", conflict, allowed))
        return scenario.origin.beside("cluster.fabric", section.kind)
    with relocated_errors(scenario, "cluster.fabric"):
        return validate_document(FabricSpec, fields)


def _names_cables(scenario: Scenario) -> bool:
    """Whether an event names a switch or a cable of the fabric.

    Adaptive routing joins these to one link, of which an event could only mean all.
    """
    events = [event.model_dump(exclude_none=True) for event in scenario.events]
    return any("fabric/" in str(value) for event in events for value in event.values())


def resolve_settings(scenario: Scenario) -> LibrarySettings:
    """Return the settings of the library: its version and environment.

    Raises `InputError`: an unknown variable or value, or NCCL's settings for another library; names
        line and field.
    """
    section = scenario.library
    env = dict(section.env)
    if section.name != "nccl":
        faults = list(_find_nccl_settings(scenario))
        if faults:
            raise InputError(faults)
    else:
        choices = {"NCCL_ALGO": section.algorithm, "NCCL_PROTO": section.protocol}
        env = {name: choice for name, choice in choices.items() if choice != "auto"} | env
    with relocated_errors(scenario, "library"):
        return settings_of(
            version=section.version,
            env=env,
            fields=("library.version", "library.env"),
        )


def _find_nccl_settings(scenario: Scenario) -> Iterator[Fault]:
    """List settings that the library of a scenario, another than NCCL, does not have."""
    section = scenario.library
    protocols = {"auto", *load_library(section.name).protocols}
    rings = section.name == "plain"  # with the rings and the chunks of NCCL's
    unused = {
        "algorithm": None if section.algorithm in {"auto", "ring"} else section.algorithm,
        "protocol": None if section.protocol in protocols else section.protocol,
        "channels": None if rings else section.channels,
        "credits": section.credits if section.name == "mpi" else None,  # its sends block
        "version": section.version,
        "env": next(iter(section.env), None),
    }
    for name, value in unused.items():
        if value is not None:
            allowed = f"nothing for {section.name}, only for name: nccl"
            yield scenario.origin.fault(f"library.{name}", repr(value), allowed)


def _load_library(section: LibrarySection) -> CommLibrary:
    """Load the library with the numbers that the scenario overrides."""
    loaded = load_library(section.name)
    protocols = {
        name: protocol.model_copy(update={"credits": section.credits or protocol.credits})
        for name, protocol in loaded.protocols.items()
        if section.protocol in {"auto", name}
    }
    variants = loaded.variants
    if section.credits is not None:  # for every machine
        variants = tuple(each.model_copy(update={"credits": None}) for each in variants)
    overrides = {"workers": section.workers, "host_step": section.host_step}
    return loaded.model_copy(
        update={
            "protocols": protocols or loaded.protocols,
            "variants": variants,
            **{name: value for name, value in overrides.items() if value is not None},
        }
    )


@dataclass(frozen=True, slots=True)
class MachineEnsemble:
    """A machine with its most likely numbers, and alternatives that measurements allow.

    `drawn` are draws from a profile; `bounds`, without one, have the shortest and the longest
    times of collectives that recorded machines of its kind had. Both empty: no interval is known.
    `profile` has the measured numbers, where there are any.
    """

    likely: Machine
    drawn: tuple[Machine, ...] = ()
    bounds: tuple[Machine, ...] = ()
    profile: Profile | None = None

    @property
    def alternatives(self) -> tuple[Machine, ...]:
        """Machines that the interval of a prediction rests on."""
        return self.drawn or self.bounds


DRAWS = 20
"""Draws from a profile that an interval rests on."""


def build_ensemble(
    scenario: Scenario, nominal: Machine, profile: Profile | None, size: ClusterSize
) -> MachineEnsemble:
    """Apply a profile and the scenario's what-if to a machine with numbers from datasheets.

    The what-if is applied last, except for factors of a profile: they multiply the numbers of
    the machine that the what-if describes.
    """
    what_if = what_if_of(scenario)
    if profile is None:
        likely = apply_what_if(what_if, nominal)
        bounds = bound_machines(likely) if what_if.communication else ()
        return MachineEnsemble(likely, bounds=bounds)
    if profile.transfer is not None:
        nominal = apply_what_if(what_if, nominal)
        what_if = WhatIf(communication=what_if.communication)
    from perfmodel.calibrate import draws, measured_at
    from perfmodel.calibrate.apply import apply

    with relocated_errors(scenario, "profile") if scenario.profile else nullcontext():
        measured = apply(profile, nominal)
    likely = apply_what_if(what_if, measured)
    if not (what_if.communication and measured_at(profile, size.gpus, "all_reduce")):
        return MachineEnsemble(likely, profile=profile)
    profiles = draws(profile, DRAWS, seed=scenario.seed)
    drawn = tuple(apply_what_if(what_if, apply(each, nominal)) for each in profiles)
    return MachineEnsemble(likely, drawn, profile=profile)


def bound_machines(machine: Machine) -> tuple[Machine, ...]:
    """Return the machine at both ends of the 80 % interval of recorded times of collectives.

    All collectives of a step are off by the same factor at once, which is the worst case. Empty
    for libraries whose predictions from datasheets were not compared with recorded sweeps.
    """
    if machine.library.name != "nccl" or len(machine.topology.ranks) < 2:
        return ()

    def scale_to(end: int) -> Machine:
        factors_of = cache(lambda op: factors_by_band(machine.topology, op))

        def factor(context: CollectiveContext) -> float:
            return factors_of(context.op)[band_of(context.nbytes)][end]

        return machine.with_corrections(machine.topology, Corrections(residual=factor))

    return scale_to(0), scale_to(1)


@contextmanager
def relocated_errors(
    scenario: Scenario, section: str, also: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Add the scenario's file, line and field to errors of a lower layer.

    Faults in another file (a node template, a model file) keep their place.
    """
    model = {"model": f"model.{scenario.model.source}"}
    fields = _FIELDS | model | dict(also)

    def relocate(fault: Fault) -> Fault:
        field = fault.field
        if fault.file or field.startswith("--set "):
            return fault
        if not _is_scenario_field(field):
            field = fields.get(field, f"{section}.{field}")
        return scenario.origin.fault(field, fault.found, fault.allowed)

    try:
        yield
    except InputError as error:
        raise InputError(map(relocate, error.faults)) from error.__cause__


def _is_scenario_field(field: str) -> bool:
    """Whether a dotted field is one of a scenario's, and not of a lower layer's parameters."""
    section, dot, _ = field.partition(".")
    return bool(dot) and section in Scenario.model_fields
