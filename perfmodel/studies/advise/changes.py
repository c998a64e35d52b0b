"""Changes of how a scenario trains: buckets, hook, batch, precision, strategy, kernels, degrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.scenario import ClusterSize, Scenario, UpgradeSection
from perfmodel.scenario.sections.plan import Money
from perfmodel.studies.advise.model import Proposed, Touches
from perfmodel.topology.model import Gpu, Topology
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.spec import NodeSpec, nic_ports
from perfmodel.training.strategies import STRATEGIES
from perfmodel.workload.model import Workload

LOSSY = "gradients lose information: compare the loss over a few thousand steps"
COARSER = "gradients are rounded to {bits} for the sum over GPUs"

_HOOKS: Mapping[str, tuple[str, Touches, str]] = {
    "fp16": ("fp16 hook", "rounding", f"{COARSER.format(bits='10 bits')}"),
    "bf16": ("bf16 hook", "rounding", f"{COARSER.format(bits='7 bits')}"),
    "powersgd": ("PowerSGD hook", "training", LOSSY),
}
"""Name, what it touches, and what it costs."""

_NARROWER = {
    "fp32": ("tf32", "bf16", "fp16"),
    "tf32": ("bf16", "fp16"),
    "fp16": ("fp8",),
    "bf16": ("fp8",),
}
"""Precisions of matrix products that are quicker than one."""

_PRECISION_NOTES = {
    "tf32": "products of 10 bits of mantissa",
    "bf16": "products of 7 bits of mantissa (autocast)",
    "fp16": "products of 10 bits of mantissa, with loss scaling (autocast, GradScaler)",
    "fp8": "products in fp8: compare the loss over a few thousand steps",
}

_CHANNELS = frozenset(
    f"NCCL_{side}_{name}" for side in ("MIN", "MAX") for name in ("CTAS", "NCHANNELS", "NRINGS")
)
LEAST_CHANNELS = (16, 32)
"""Numbers that are offered: NCCL's own most are 32 (64 on Blackwell)."""

_STRATEGIES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("DDP", {"kind": "ddp"}),
    ("ZeRO stage 1", {"kind": "zero", "stage": 1}),
    ("ZeRO stage 2", {"kind": "zero", "stage": 2}),
    ("FSDP", {"kind": "fsdp"}),
    ("Megatron's distributed optimizer", {"kind": "megatron", "use_distributed_optimizer": True}),
)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels that may run otherwise: a field of ``compute``, its value, and what it costs."""

    text: str
    field: str
    value: Any = True
    note: str = ""
    is_plural: bool = False
    takes_article: bool = False


_KERNELS = (
    _Kernels("channels-last layout", "channels_last", takes_article=True),
    _Kernels("torch.compile", "compiled", note="compiling takes minutes at the start"),
    _Kernels("CUDA graphs", "cuda_graphs", note="shapes have to stay the same", is_plural=True),
    _Kernels("fused optimizer", "optimizer_kernels", "fused", takes_article=True),
    _Kernels("fused attention", "fused_attention"),
)

_SCHEDULES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("interleaved pipeline, 2 chunks", {"schedule": "interleaved", "chunks": 2}),
    ("zero-bubble pipeline (ZB-H1)", {"schedule": "zb_h1"}),
)


def list_settings(
    scenario: Scenario, workload: Workload, gpu: Gpu, gpus: int
) -> Iterator[Proposed]:
    """List what could be set otherwise; whether it can and whether it fits is seen later."""
    predicted = scenario.compute.source == "roofline"
    if gpus > 1:
        yield from _channels(scenario)
        yield from _hooks(scenario, workload)
        yield from _strategies(scenario)
    if predicted:
        yield from _batches(scenario)
        yield from _recomputation(scenario)
    if predicted and scenario.compute.measured_step is None:
        yield from _precisions(scenario, gpu)
        yield from _kernels(scenario)
    yield from _degrees(scenario)


def _channels(scenario: Scenario) -> Iterator[Proposed]:
    """More channels of NCCL than it chooses, which carry small messages of many NICs."""
    library = scenario.library
    if library.name != "nccl" or library.channels is not None or set(library.env) & _CHANNELS:
        return
    for least in LEAST_CHANNELS:
        fields = {"library.env": {**library.env, "NCCL_MIN_CTAS": str(least)}}
        note = "multiprocessors that kernels of communication take from others"
        text = f"at least {least} channels of NCCL"
        yield Proposed(text, fields, "channels", "nothing", note, is_plural=True)


def _hooks(scenario: Scenario, workload: Workload) -> Iterator[Proposed]:
    """Gradients that travel narrower, by the own field of each strategy."""
    own = scenario.strategy
    if all(tensor.dtype != "fp32" for tensor in workload.tensors):
        narrower: tuple[str, ...] = ("powersgd",)
    else:
        narrower = ("fp16", "bf16", "powersgd")
    if own.kind == "ddp" and own.mixed_precision is None:
        for hook in narrower:
            if own.hook.kind != hook:
                text, touches, note = _HOOKS[hook]
                section = {"kind": "powersgd", "rank": 4} if hook == "powersgd" else hook
                fields = {"strategy.hook": section}
                yield Proposed(text, fields, "hook", touches, note, takes_article=True)
    field = {"fsdp": "reduce_dtype", "zero": "communication_data_type"}.get(own.kind)
    if field is not None and "bf16" in narrower and getattr(own, field) is None:
        note = COARSER.format(bits="7 bits")
        fields = {f"strategy.{field}": "bf16"}
        yield Proposed("gradients in bf16", fields, "hook", "rounding", note, is_plural=True)


def _strategies(scenario: Scenario) -> Iterator[Proposed]:
    own = scenario.strategy
    if STRATEGIES[own.kind].loops is not None:
        note = "another algorithm than with servers: updates are synchronous"
        yield Proposed("DDP", {"strategy": {"kind": "ddp"}}, "strategy", "training", note)
        return
    for text, section in _STRATEGIES:
        differing = {name for name in section if getattr(own, name, None) != section[name]}
        if not differing:
            continue
        if own.kind == "local_sgd" or (own.kind == "ddp" and own.joined_gpus):
            continue  # another algorithm
        if section["kind"] == own.kind:  # its other settings stay
            fields = {f"strategy.{name}": section[name] for name in differing}
            yield Proposed(text, fields, "strategy")
            continue
        more = {"accumulate": own.accumulate} if own.accumulate > 1 else {}
        yield Proposed(text, {"strategy": {**section, **more}}, "strategy")


def _batches(scenario: Scenario) -> Iterator[Proposed]:
    """Larger micro-batches of the same batch, larger batches, and more micro-steps."""
    training, count = scenario.training, scenario.accumulate
    can_accumulate = "accumulate" in type(scenario.strategy).model_fields
    per_gpu = training.batch_per_gpu
    if can_accumulate and count % 2 == 0:
        fields: dict[str, Any] = {"strategy.accumulate": count // 2}
        if per_gpu is not None:
            fields["training.batch_per_gpu"] = 2 * per_gpu
        text = f"larger micro-batches ({count // 2} a step)"
        yield Proposed(text, fields, "batch", is_plural=True)
    if training.global_batch is not None:
        twice = {"training.global_batch": 2 * training.global_batch}
        note = "twice the batch: learning rate and epochs have to follow"
        yield Proposed("twice the global batch", twice, "batch", "training", note)
        return
    assert per_gpu is not None
    for factor in (2, 4):
        note = f"{factor} times the batch: learning rate and epochs have to follow"
        batch = {"training.batch_per_gpu": factor * per_gpu}
        yield Proposed(f"batch {factor * per_gpu:,} per GPU", batch, "batch", "training", note)
        if can_accumulate:
            yield Proposed(
                f"{factor * count} micro-batches a step",
                {"strategy.accumulate": factor * count},
                "batch",
                "training",
                note,
                is_plural=True,
            )
    if scenario.compute.recompute == "full":
        return
    recomputed: dict[str, Any] = {
        "training.batch_per_gpu": 2 * per_gpu,
        "compute.recompute": "full",
    }
    note = "2 times the batch: learning rate and epochs have to follow"
    text = f"batch {2 * per_gpu:,} per GPU with full recomputation"
    yield Proposed(text, recomputed, "batch", "training", note)


def _recomputation(scenario: Scenario) -> Iterator[Proposed]:
    own = scenario.compute.recompute
    for kind in ("none", "selective"):
        if own not in (kind, "none"):
            text = "no recomputation" if kind == "none" else "selective recomputation"
            yield Proposed(text, {"compute.recompute": kind}, "recomputation")
    if scenario.compute.offload_activations != "none":
        fields = {"compute.offload_activations": "none"}
        yield Proposed("no offloading of activations", fields, "recomputation")


def _precisions(scenario: Scenario, gpu: Gpu) -> Iterator[Proposed]:
    for precision in _NARROWER.get(scenario.compute.precision, ()):
        if precision not in gpu.peak_flops:
            continue
        touches = "training" if precision == "fp8" else "rounding"
        note = _PRECISION_NOTES[precision]
        fields = {"compute.precision": precision}
        yield Proposed(f"{precision} arithmetic", fields, "precision", touches, note)  # type: ignore[arg-type]


def _kernels(scenario: Scenario) -> Iterator[Proposed]:
    for each in _KERNELS:
        own = getattr(scenario.compute, each.field)
        if not own or (each.field == "optimizer_kernels" and own != each.value):
            yield Proposed(
                each.text,
                {f"compute.{each.field}": each.value},
                each.field,
                note=each.note,
                is_plural=each.is_plural,
                takes_article=each.takes_article,
            )


def _degrees(scenario: Scenario) -> Iterator[Proposed]:
    """Degrees of a model that is split over GPUs, and the schedule of its pipeline."""
    parallel = scenario.parallel
    weak = scenario.training.scaling == "weak"
    note = "the global batch changes with the data-parallel ranks" if weak else ""
    if parallel.tensor > 1:
        half = parallel.tensor // 2
        fields: dict[str, Any] = {"parallel.tensor": half}
        if half == 1:
            fields = {"parallel": _without_tensor(scenario)}
        touches = "training" if weak else "nothing"
        yield Proposed(f"tensor degree {half}", fields, "tensor degree", touches, note)  # type: ignore[arg-type]
        if not parallel.sequence_parallel:
            fields = {"parallel.sequence_parallel": True}
            yield Proposed("sequence parallelism", fields, "sequence parallelism")
    if parallel.pipeline.stages > 1 and parallel.pipeline.schedule == "1f1b":
        for text, section in _SCHEDULES:
            whole = {"stages": parallel.pipeline.stages, **section}
            yield Proposed(text, {"parallel.pipeline": whole}, "schedule")


def _without_tensor(scenario: Scenario) -> dict[str, Any]:
    """Return the section as written, without what only a tensor group has."""
    written = scenario.origin.content.get("parallel") or {}
    of_tensors = {"tensor", "sequence_parallel", "overlap", "parallel_loss"}
    return {name: value for name, value in written.items() if name not in of_tensors}


# ---------------------------------------------------------------- changes of hardware

GBIT_Bps = 1e9 / 8
ADAPTERS_GBIT = (1, 10, 25, 50, 100, 200, 400, 800)
"""Rates of Ethernet and InfiniBand adapters that are sold: IEEE 802.3by to df, NVIDIA's ConnectX-4
to ConnectX-8 data sheets."""
TIMES = (2, 4)
"""How many times the present rate is offered, at least."""
NO_PRICE = "the price of the adapters, their ports and cables"


def find_adapter(node: NodeSpec | Topology) -> tuple[float | None, int]:
    """Rate of a network adapter by its data sheet, in bytes per second, and how many a node has.

    None where a graph stands for the node, which says what links carry, and not what is sold.
    """
    ports = () if isinstance(node, Topology) else nic_ports(node)
    return (ports[0].bandwidth, len(ports)) if ports else (None, 0)


def list_upgrades(
    scenario: Scenario, node: NodeSpec | Topology, size: ClusterSize, routing: float
) -> Iterator[Proposed]:
    """List hardware that could be had instead.

    `routing`: times as long as the largest all-reduce takes without collisions in the fabric.
    """
    if size.nodes > 1 and not isinstance(node, Topology):
        yield from _adapters(scenario, node)
        yield from _fabric(scenario, node, routing)
    if not isinstance(node, Topology) and node.power_limit is not None:
        full_W = load_gpu(node.gpu).power_W
        fields = {"cluster.node.power_limit": f"{full_W:g} W"}
        note = "power and cooling of the racks"
        text = f"boards at their {full_W:g} W"
        yield Proposed(text, fields, "power", "hardware", note, is_plural=True)
    yield from _planned(scenario, size)


POWER_SHARES = (0.85, 0.7, 0.55)
"""Limits on the boards' power that are tried, of their data sheet's; above the least of the law."""


def list_power_limits(scenario: Scenario, node: NodeSpec | Topology) -> Iterator[Proposed]:
    """List limits below the present one, where times follow from the GPU's rates."""
    if isinstance(node, Topology):
        return
    compute, full_W = scenario.compute, load_gpu(node.gpu).power_W
    stated = compute.source != "roofline" or compute.measured_step is not None
    if stated or scenario.cluster.mixed or full_W is None:
        return
    for share in POWER_SHARES:
        limit_W = 10 * round(share * full_W / 10)
        if limit_W < (node.power_limit or full_W):
            fields = {"cluster.node.power_limit": f"{limit_W:g} W"}
            text = f"boards limited to {limit_W:g} W"
            yield Proposed(
                text, fields, "power", "hardware", limit_W=float(limit_W), is_plural=True
            )


def _adapters(scenario: Scenario, node: NodeSpec) -> Iterator[Proposed]:
    rate_Bps, count = find_adapter(node)
    if rate_Bps is None:
        return
    own = 1.0 if scenario.what_if is None else scenario.what_if.network_bandwidth
    offered = []
    for times in TIMES:
        larger = (each for each in ADAPTERS_GBIT if each * GBIT_Bps >= 0.99 * times * rate_Bps)
        offered.append(next(larger, None))
    for gbit in dict.fromkeys(offered):
        if gbit is None:
            continue
        several = f"{count} x " if count > 1 else ""
        factor = own * gbit * GBIT_Bps / rate_Bps
        fields = {"what_if.network_bandwidth": factor}
        text = f"{several}{gbit} Gbit/s adapters and switches"
        yield Proposed(text, fields, "network adapter", "hardware", NO_PRICE, is_plural=True)


def _fabric(scenario: Scenario, node: NodeSpec, routing: float) -> Iterator[Proposed]:
    fabric = scenario.cluster.fabric
    if fabric is None:
        return
    if fabric.kind in ("leaf-spine", "fat-tree") and len(nic_ports(node)) > 1:
        note = "other cables: each adapter of a server to a leaf of its own"
        fields: dict[str, object] = {"cluster.fabric": "rail-optimised"}
        yield Proposed("rail-optimised fabric", fields, "fabric", "hardware", note)
    if (fabric.oversubscription or 1.0) > 1.0:
        note = "the price of more uplinks and spine switches"
        fields = {"cluster.fabric.oversubscription": 1.0}
        yield Proposed("no oversubscription", fields, "fabric", "hardware", note)
    if routing > 1.0 and fabric.routing != "adaptive":
        note = "switches and adapters that can"
        fields = {"cluster.fabric.routing": "adaptive"}
        yield Proposed("adaptive routing", fields, "routing", "hardware", note)


def _planned(scenario: Scenario, size: ClusterSize) -> Iterator[Proposed]:
    """Upgrades of the scenario's plan, at their prices; not those of other nodes."""
    plan = scenario.plan
    if plan is None:
        return
    own = {each.name for each in plan.candidates if each.node == scenario.cluster.node}
    for upgrade in plan.upgrades:
        if upgrade.candidates is not None and own.isdisjoint(upgrade.candidates):
            continue
        fields = {
            name: value
            for name, value in upgrade.set.items()
            if name.partition(".")[0] not in {"plan", "sweep", "scale"}
        }
        if fields:
            price, rent = _prices(upgrade, size)
            yield Proposed(
                upgrade.name,
                fields,
                "upgrade",
                "hardware",
                "its price is not stated" if price is None and rent is None else "",
                price,
                rent,
            )


def _prices(upgrade: UpgradeSection, size: ClusterSize) -> tuple[Money | None, Money | None]:
    """Price once, and more of the rent of each hour, of the whole cluster."""
    if upgrade.price is not None:
        return upgrade.price, None
    if upgrade.price_per_node is not None:
        each = upgrade.price_per_node
        return Money(each.amount * size.nodes, each.currency), None
    if upgrade.price_per_gpu_hour is not None:
        each = upgrade.price_per_gpu_hour
        return None, Money(each.amount * size.gpus, each.currency)
    return None, None


def hourly_price(scenario: Scenario, size: ClusterSize) -> Money | None:
    """Price of an hour of the cluster, where the plan has one for such nodes."""
    for candidate in () if scenario.plan is None else scenario.plan.candidates:
        if candidate.node == scenario.cluster.node and candidate.price_per_gpu_hour is not None:
            each = candidate.price_per_gpu_hour
            return Money(each.amount * size.gpus, each.currency)
    return None
