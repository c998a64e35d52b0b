"""The assumptions of a plan, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfmodel.scenario import CandidateSection, PlanSection, PowerSection, Scenario
from perfmodel.studies.plan.candidates import Hardware
from perfmodel.studies.plan.model import PlanOption
from perfmodel.studies.run.steps.routing_cost import MUCH
from perfmodel.topology.templates.gpus import gpu_sources

HardwareByName = Mapping[str, Hardware | str]
"""Hardware of each candidate's node, or why it is not known."""

OF_STEPS = (
    "Step times are predictions by simulation, as of `perfmodel run` for each cluster; every step "
    "takes as long as a settled one, and the input pipeline never holds a GPU up."
)


def assumptions(
    scenario: Scenario, options: Sequence[PlanOption], hardware: HardwareByName
) -> tuple[str, ...]:
    """Return the assumptions beside those of the step, which `perfmodel run` gives."""
    plan = scenario.plan
    assert plan is not None
    return (
        OF_STEPS,
        *_describe_samples(plan, options),
        *_describe_failures(plan),
        _describe_intervals(plan),
        *_describe_money(plan),
        *_describe_power(plan, hardware),
    )


def cautions(scenario: Scenario, options: Sequence[PlanOption]) -> tuple[str, ...]:
    """Return the assumptions that no reader should miss."""
    assert scenario.plan is not None
    plan = scenario.plan
    return (
        *_describe_samples(plan, options),
        *_warn_of_tight_memory(options),
        *_warn_of_hashed_flows(options),
        *_warn_of_unlike_energies(plan),
        *_warn_of_free_energy(plan),
    )


def _warn_of_tight_memory(options: Sequence[PlanOption]) -> Iterator[str]:
    """Warn of options that fit, but not surely, and so answer no question."""
    tight = [o for o in options if o.status == "ok" and o.step is not None and o.step.tight]
    if not tight:
        return
    others = any(o.status == "ok" and o not in tight for o in options)
    chosen = "so no answer names it" if others else "and nothing else fits"
    for name, nodes in _sizes(tight):
        yield (
            f"{name}, {nodes}: memory is tight, CUDA, NCCL and the allocator may not fit beside "
            f"the training state; {chosen}. Try one step on such a machine before you buy."
        )


def _warn_of_hashed_flows(options: Sequence[PlanOption]) -> Iterator[str]:
    """Warn of fabrics whose static hash makes all-reduces much slower."""
    slow = [o for o in options if o.step is not None and o.step.routing_cost > MUCH]
    for name, nodes in _sizes(slow):
        worst = max(o.step.routing_cost for o in slow if o.step and o.candidate == name)
        yield (
            f"{name}, {nodes}: the fabric sends each flow one way by a static hash (ECMP), and "
            f"flows collide: the largest all-reduce takes up to {worst:.2g} times as long as if "
            "every flow were spread over all its ways (`fabric: {routing: adaptive}`)."
        )


def _sizes(options: Sequence[PlanOption]) -> Iterator[tuple[str, str]]:
    """Candidates of some options, and their numbers of nodes as words."""
    for name in dict.fromkeys(option.candidate for option in options):
        nodes = [f"{option.nodes:,}" for option in options if option.candidate == name]
        yield name, f"{', '.join(nodes)} node{'' if nodes == ['1'] else 's'}"


def _warn_of_free_energy(plan: PlanSection) -> Iterator[str]:
    """Warn of a purchase without a price of electricity, which a rent includes."""
    for candidate in plan.candidates:
        power = candidate.power or PowerSection()
        if candidate.purchase is not None and power.energy_price is None:
            yield (
                f"{candidate.name}: electricity costs nothing here (no power.energy_price is "
                "given)."
            )


def _warn_of_unlike_energies(plan: PlanSection) -> Iterator[str]:
    """Warn where some energies are of whole nodes and others of GPUs alone."""
    bare = [c.name for c in plan.candidates if not _is_of_whole_node(c.power)]
    if 0 < len(bare) < len(plan.candidates):
        yield (
            f"The energy of {', '.join(bare)} is that of the GPUs alone, of the others that of "
            "whole nodes: give each candidate power.per_node or power.factor to compare them."
        )


def _is_of_whole_node(power: PowerSection | None) -> bool:
    return power is not None and (power.per_node is not None or power.factor > 1)


def _describe_intervals(plan: PlanSection) -> str:
    luck = "" if plan.failures is None else " and luck with failures, as if independent,"
    return (
        f"80 % intervals are of compute and communication{luck} carried through to days and costs. "
        "Prices and what upgrades save have none."
    )


def _describe_samples(plan: PlanSection, options: Sequence[PlanOption]) -> Iterator[str]:
    batches = sorted({o.step.global_batch for o in options if o.step and o.status == "ok"})
    if not batches:
        return
    target = plan.target
    if target.critical_batch is not None:
        reference = f" at a batch of {target.reference_batch:,}" if target.reference_batch else ""
        yield (
            "Samples grow with the global batch as 1 + batch / critical batch (McCandlish et al. "
            f"2018, arXiv 1812.06162), with the critical batch of {target.critical_batch:,} and "
            f"the target{reference or ' for small batches'} as given."
        )
    elif batches[0] != batches[-1]:
        yield (
            f"The global batch is {batches[0]:,} to {batches[-1]:,} samples, and every batch is "
            "taken to need as many samples for the same result: whether the largest still "
            "trains as well is not modelled (target.critical_batch would)."
        )


def _describe_failures(plan: PlanSection) -> Iterator[str]:
    if plan.failures is None:
        yield "Nothing ever fails and nothing is checkpointed (no `failures` given)."
        return
    how = (
        "checkpoints come as often as given"
        if plan.failures.checkpoint_every
        else "checkpoints come at Daly's interval (2006), in whole steps"
    )
    yield (
        "Failures of nodes are independent, equally likely at any time, and each stops the whole "
        f"job; {how}, training stands still while one is written, and goes on from the last one "
        "after the restart. A failed node is replaced within the restart."
    )
    if plan.failures.checkpoint_write is None and plan.failures.checkpoint_size is None:
        yield (
            "A checkpoint holds parameters, buffers and optimizer states once, with fp32 master "
            "weights where parameters are narrower."
        )
    yield (
        "Expected wall time is Daly's exponential formula; simulated trainings check it and give "
        "the spread that luck with failures has."
    )


def _describe_money(plan: PlanSection) -> Iterator[str]:
    bought = [c for c in plan.candidates if c.purchase is not None]
    rented = [c for c in plan.candidates if c.price_per_gpu_hour is not None]
    if bought or rented:
        yield (
            "Prices are the scenario file's. A cluster is paid for from start to end of the "
            "training, failures included, and no longer; setting it up, storage, networks to the "
            "outside and people cost nothing here."
        )
    for candidate in bought:
        purchase = candidate.purchase
        assert purchase is not None
        yield (
            f"{candidate.name}: a node's price is spread over {purchase.years:g} years of which "
            f"{100 * purchase.utilisation:.3g} % are used, without interest and resale value; "
            "electricity is charged for the training only."
        )
    if plan.upgrades:
        yield (
            "An upgrade pays back by what each training costs less; the cluster is taken to train "
            "like this one after the other until then."
        )


def _describe_power(plan: PlanSection, hardware: HardwareByName) -> Iterator[str]:
    for candidate in plan.candidates:
        node = hardware[candidate.name]
        if not isinstance(node, str):
            yield f"{candidate.name}: {_describe_draw(candidate, node)}."


def _describe_draw(candidate: CandidateSection, node: Hardware) -> str:
    power = candidate.power or PowerSection()
    losses = f", times a PUE of {power.pue:g}" if power.pue != 1 else ""
    free = "is in the rent" if candidate.price_per_gpu_hour else "is not charged for"
    charged = "" if power.energy_price else f"; its energy {free}"
    if power.per_node is not None:
        return f"a node draws {power.per_node:g} W all the time, as given{losses}{charged}"
    if power.per_gpu is None and node.gpu.power_W is None:
        return f"what a {node.gpu.name} draws is not known, so its energy is not either"
    each = power.per_gpu or node.gpu.power_W
    sheet = "the data sheet's most" if node.gpu.limited_rate == 1 else "its power limit"
    source = "as given" if power.per_gpu else sheet
    rest = (
        f" times {power.factor:g} for the rest of the node"
        if power.factor != 1
        else " and the rest of the node nothing"
    )
    return f"a GPU draws {each:g} W all the time, {source},{rest}{losses}{charged}"


def sources(plan: PlanSection, hardware: HardwareByName) -> dict[str, str]:
    """Return the source of the power of each GPU, unless the file or a power limit gives it."""
    power_sources = {}
    for candidate in plan.candidates:
        node = hardware[candidate.name]
        power = candidate.power or PowerSection()
        is_given = power.per_node or power.per_gpu
        if isinstance(node, str) or node.gpu.power_W is None or node.gpu.limited_rate < 1:
            continue
        if not is_given:
            power_sources[f"power of {node.gpu.name}"] = gpu_sources(node.gpu.name)["power"]
    return power_sources
