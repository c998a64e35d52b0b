"""From the cluster and library sections of a scenario to a Machine, and to alternatives of it.

The alternatives are what an interval of a prediction rests on. Without a profile they are bounds
from how far recorded runs of similar machines were off predictions from datasheets.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import RankGroup
from perfmodel.collectives.dependencies import messages_in
from perfmodel.errors import Fault, InputError, raise_faults, refuse_if
from perfmodel.files import validate_document
from perfmodel.library.corrections import CollectiveContext, Corrections, band_of, factors_by_band
from perfmodel.library.lowering.lower import Algorithm, lower_collective, lower_message
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.library.settings import LibrarySettings, settings_of
from perfmodel.scenario import ClusterSize, LibrarySection, Scenario, WhatIf
from perfmodel.scenario.model import relocated_errors
from perfmodel.scenario.sections.cluster import NodeSection
from perfmodel.simulate.engine.engine import (
    BY_SENDS,
    Fidelity,
    has_shared_cores,
    uses_sockets,
)
from perfmodel.simulate.uncontended import MESSAGES, message_pairs
from perfmodel.studies.run.resolve.what_if import apply_what_if, what_if_of
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import MOST_GPUS, build_topology, with_usual_routing
from perfmodel.topology.templates.spec import FabricSpec, NodeSpec
from perfmodel.training.plan.step_plan import Collective, StepPlan

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

Groups = tuple[RankGroup, ...]

MESSAGE_SENDS = 5_000_000
"""Sends that fidelity "message" is allowed: half a minute, minutes where numba is missing.
A ring of 512 GPUs on 8 channels has 4.2 million."""
MOST_SOCKETS_S = 60.0
"""CPU time that messages on sockets are allowed, all simulations of a size together."""
SEND_S, LINK_S, PIECE_S = 10e-6, 4e-6, 5e-6
"""CPU time of a message on sockets, of each link that it crosses, and of each piece of it that a
receiver has to process where processes share cores. Measured on one core of an AMD EPYC: 18 us for
3 links, 40 to 55 us for 10, 79 to 105 us with 9 pieces."""


def check_message_size(
    machine: Machine,
    collectives: Iterable[tuple[str, int] | tuple[str, int, Groups]],
    field: str = "fidelity",
    *,
    fidelity: str = "message",
    algorithm: Algorithm | None = None,
    sockets: bool = False,
    by_cores: bool = False,
    simulations: float = 1.0,
) -> None:
    """Refuse a run of single messages whose sends would take minutes.

    `collectives`: operation and bytes, among all ranks or in each of some groups. Sends are those
        of the library's schedule: rings, pieces of trees and chains, segments.
    `fidelity`: "message", or another one that simulates sends.
    `algorithm`: as for `perfmodel.library.lowering.lower.lower_collective`.
    `sockets`: whether messages are on sockets, and so limited by their CPU time.
    `by_cores`: whether it simulates messages because ranks share cores, and not by its fidelity.
    `simulations`: how often all of them are simulated.
    Raises `InputError`: says how many sends there would be and what to use instead.
    """
    from perfmodel.simulate.reference import MOST_SENDS

    ranks = len(machine.topology.ranks)
    if ranks < 2:
        return
    most = MOST_SENDS if fidelity == "reference" else MESSAGE_SENDS
    work_of = cache(partial(_work_of, machine, algorithm))
    requested, sends, work_s = list(collectives), 0, 0.0
    for number, (op, nbytes, *among) in enumerate(requested, 1):
        more, more_s = work_of(op, nbytes, among[0] if among else (range(ranks),))
        sends, work_s = sends + more, work_s + simulations * more_s
        if work_s > MOST_SOCKETS_S if sockets else sends > most:
            who = (
                f"{ranks} ranks that share cores" if by_cores else f"'{fidelity}' for {ranks} ranks"
            )
            time = f", {work_s:.0f} s of CPU time" if sockets else ""
            progress = f"{sends:,} sends in {number} of {len(requested)} collectives{time}"
            limit = f"{MOST_SOCKETS_S:.0f} s" if sockets else f"{most:,} sends"
            instead = "fewer ranks" if by_cores else "use 'flow', fewer ranks"
            raise InputError(
                Fault(
                    field, f"{who} ({progress})", f"at most {limit}; {instead} or smaller buffers"
                )
            )


def _work_of(
    machine: Machine, algorithm: Algorithm | None, op: str, nbytes: int, groups: Groups
) -> tuple[int, float]:
    """Return how many messages a collective of some groups sends, and what simulating them takes.

    That is the time of this process on its own computer, for messages on sockets; seconds.
    """
    from perfmodel.simulate.sockets.core_work import PIECE_BYTES

    if op in MESSAGES:
        pairs = [pair for group in groups for pair in message_pairs(op, group)]
        lowered, copies = lower_message(machine, *pairs[0], nbytes), len(pairs)
    else:
        root, copies = groups[0][0], len(groups)
        lowered = lower_collective(machine, op, nbytes, groups[0], root=root, algorithm=algorithm)[
            0
        ]
    messages, stages = messages_in(lowered.schedule) * copies, lowered.stages
    edges = sum(len(stage.edges) for stage in stages)
    links = sum(len(stage.edges.arcs) for stage in stages) / max(1, edges)
    sent = (float(np.max(phase.nbytes)) for stage in stages for phase in stage.phases)
    pieces = max(sent, default=0.0) / PIECE_BYTES if machine.topology.sockets.cores else 0.0
    return messages, messages * (SEND_S + LINK_S * links + PIECE_S * pieces)


SIMULATIONS_OF_A_SIZE = 6
"""Of one size over sockets: the run, limits of the step, and four machines nearby."""


def check_plan_messages(machine: Machine, plan: StepPlan, fidelity: Fidelity, steps: int) -> None:
    """Refuse more messages of a plan, where each is simulated, than minutes allow."""
    by_sends, sockets = fidelity in BY_SENDS, uses_sockets(machine, fidelity)
    if not by_sends and not (sockets and has_shared_cores(machine)):
        return
    groups = {
        name: tuple(group for group in each if len(group) > 1)
        for name, each in plan.groups_of.items()
    }
    works = {task.work.key: task.work for task in plan.tasks if isinstance(task.work, Collective)}
    sent = [
        (work.op, work.nbytes, groups[work.communicator])
        for work in works.values()
        for _ in range(work.times)
        if groups[work.communicator]
    ]
    check_message_size(
        machine,
        sent * steps,
        "fidelity" if by_sends else "cluster.nodes",
        fidelity=fidelity,
        sockets=sockets,
        by_cores=not by_sends,
        simulations=SIMULATIONS_OF_A_SIZE,
    )


MOST_SHARED_WORK = 6_400
"""GPUs of all jobs of a scenario with several, times their number: each change of rates is followed
by all of them, in simulations with and without each. Ten jobs of 64 V100s that train convolutions
take 80 s of CPU time, five of 64 A100s that train transformers half a minute."""
MOST_CUBED_WORK = 32_768
"""GPUs of all jobs of a scenario with few, times the cube of their number. Two jobs on 4,096 GPUs
take 11 s of CPU time (ResNet-50 beside VGG-16); transformers on 8,192 take minutes."""


def most_sharing_gpus(jobs: int) -> int:
    """GPUs that some jobs on one network may have in all."""
    return max(MOST_SHARED_WORK // jobs, MOST_CUBED_WORK // jobs**3)


def check_sharing_jobs(scenario: Scenario, size: ClusterSize) -> None:
    """Refuse jobs that share a network among more GPUs than can be followed in minutes."""
    nodes = [size.nodes, *(job.nodes for job in scenario.jobs)]
    gpus, most = sum(nodes) * size.gpus_per_node, most_sharing_gpus(len(nodes))
    if scenario.jobs and gpus > most:
        largest = nodes.index(max(nodes))
        field = f"jobs.{largest - 1}.nodes" if largest else "cluster.nodes"
        raise InputError(
            scenario.origin.fault(
                field,
                f"{max(nodes):,} nodes, of {gpus:,} GPUs in {len(nodes)} jobs",
                f"at most {most:,} GPUs in all jobs; a larger job runs without 'jobs'",
            )
        )


def check_cluster_size(gpus: int, field: str) -> None:
    """Refuse a cluster that would not fit a workstation's memory."""
    refuse_if(gpus > MOST_GPUS, field, f"{gpus:,} GPUs", f"at most {MOST_GPUS:,} GPUs")


# ---------------------------------------------------------------- the machine


def build_machine(
    scenario: Scenario, node: NodeSpec | Topology, size: ClusterSize, hosts: int | None = None
) -> Machine:
    """Build the cluster at one size, with the library that drives it.

    `hosts`: nodes on the network; default: as many as the job has.
    Raises `InputError`: names file, line and field of the scenario.
    """
    nodes = {f"jobs.{at}.nodes": job.nodes for at, job in enumerate(scenario.jobs)}
    nodes["cluster.nodes"] = size.nodes
    most_nodes = max(nodes, key=nodes.__getitem__)  # where most of them come from
    with relocated_errors(scenario, "cluster.nodes"):
        check_cluster_size(
            (hosts or size.nodes) * size.gpus_per_node,
            "cluster.pool" if scenario.cluster.pool else most_nodes,
        )
    check_sharing_jobs(scenario, size)
    topology = node if isinstance(node, Topology) else _build(scenario, node, size, hosts)
    scenario.refuse_if(
        scenario.library.host_step and topology.gpu.generation != "cpu",
        "library.host_step",
        f"{scenario.library.host_step or 0.0:g} s",
        f"nothing with {topology.gpu.name}, only for processes on CPUs",
    )
    if topology.gpu.accelerator and scenario.library.name == "nccl":  # which it does not have
        scenario = scenario.model_copy(
            update={"library": scenario.library.model_copy(update={"name": "rings"})}
        )
    return make_machine(
        topology,
        _load_library(scenario.library),
        settings=resolve_settings(scenario),
        channels=scenario.library.channels,
    )


def _build(scenario: Scenario, node: NodeSpec, size: ClusterSize, hosts: int | None) -> Topology:
    """Join nodes by the scenario's fabric.

    Adaptive routing joins switches and cables of a fabric to one link, of which an event that names
    one could only mean all: then the fabric keeps its own routing.
    """
    fabric = _resolve_fabric(scenario)
    events = [event.model_dump(exclude_none=True) for event in scenario.events]
    names_cables = any("fabric/" in str(value) for event in events for value in event.values())
    with relocated_errors(scenario, "cluster"):
        return build_topology(
            node,
            hosts=hosts or size.nodes,
            fabric=fabric if names_cables else with_usual_routing(node, fabric),
            gpus_per_host=size.gpus_per_node,
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
    return node.model_copy(update={"extends": origin.beside("cluster.node.extends", node.extends)})


def _resolve_fabric(scenario: Scenario) -> FabricSpec | str | None:
    """The network between nodes: a shape with what differs, or the path of a fabric's file."""
    section = scenario.cluster.fabric
    if section is None:
        return None
    fields = section.model_dump(exclude_none=True)
    if not section.kind.endswith((".yaml", ".yml")):
        with relocated_errors(scenario, "cluster.fabric"):
            return validate_document(FabricSpec, fields)
    overridden = sorted(fields.keys() - {"kind"})
    scenario.refuse_if(
        overridden,
        "cluster.fabric",
        f"{', '.join(overridden)} beside the file {section.kind!r}",
        "a file alone: it says all of its fabric",
    )
    return scenario.origin.beside("cluster.fabric", section.kind)


def resolve_settings(scenario: Scenario) -> LibrarySettings:
    """Return the settings of the library: its version and environment.

    Raises `InputError`: an unknown variable or value, or NCCL's settings for another library; names
        line and field.
    """
    section, env = scenario.library, scenario.library.env
    if section.name == "nccl":
        choices = {"NCCL_ALGO": section.algorithm, "NCCL_PROTO": section.protocol}
        env = {name: choice for name, choice in choices.items() if choice != "auto"} | env
    else:
        raise_faults(_find_nccl_settings(scenario))
    with relocated_errors(scenario, "library"):
        return settings_of(
            version=section.version, env=env, fields=("library.version", "library.env")
        )


def _find_nccl_settings(scenario: Scenario) -> list[Fault]:
    """List settings that the library of a scenario, another than NCCL, does not have."""
    section = scenario.library
    name, protocols = section.name, {"auto", *load_library(section.name).protocols}
    unused = {
        "algorithm": None if section.algorithm in {"auto", "ring"} else section.algorithm,
        "protocol": None if section.protocol in protocols else section.protocol,
        "channels": None if name == "plain" else section.channels,  # which has NCCL's rings
        "credits": section.credits if name == "mpi" else None,  # its sends block
        "version": section.version,
        "env": next(iter(section.env), None),
    }
    why = "which accelerators have in place of nccl" if name == "rings" else "only for name: nccl"
    allowed = f"nothing for {name}, {why}"
    return [
        scenario.origin.fault(f"library.{field}", repr(value), allowed)
        for field, value in unused.items()
        if value is not None
    ]


def _load_library(section: LibrarySection) -> CommLibrary:
    """Load the library with the numbers that the scenario overrides."""
    loaded = load_library(section.name)
    protocols = {
        name: protocol.model_copy(update={"credits": section.credits or protocol.credits})
        for name, protocol in loaded.protocols.items()
        if section.protocol in {"auto", name}
    }
    stated = section.model_dump(include={"workers", "host_step"}, exclude_none=True)
    stated["protocols"] = protocols or loaded.protocols
    if section.credits is not None:  # for every machine
        stated["variants"] = tuple(
            each.model_copy(update={"credits": None}) for each in loaded.variants
        )
    return loaded.model_copy(update=stated)


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


PROFILE_DRAWS = 20
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
        return MachineEnsemble(
            likely, bounds=bound_machines(likely) if what_if.communication else ()
        )
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
    return MachineEnsemble(
        likely,
        tuple(
            apply_what_if(what_if, apply(each, nominal))
            for each in draws(profile, PROFILE_DRAWS, seed=scenario.seed)
        ),
        profile=profile,
    )


def bound_machines(machine: Machine) -> tuple[Machine, ...]:
    """Return the machine at both ends of the 80 % interval of recorded times of collectives.

    All collectives of a step are off by the same factor at once, which is the worst case. Empty
    for libraries whose predictions from datasheets were not compared with recorded sweeps.
    """
    if machine.library.name not in {"nccl", "rings"} or len(machine.topology.ranks) < 2:
        return ()

    factors_of = cache(partial(factors_by_band, machine.topology))

    def factor(end: int, context: CollectiveContext) -> float:
        return factors_of(context.op)[band_of(context.nbytes)][end]

    return tuple(
        machine.with_corrections(Corrections(residual=partial(factor, end))) for end in (0, 1)
    )
