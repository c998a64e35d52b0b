"""Changes that may help a scenario: of how it trains, and of the hardware that it trains on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfmodel.library.model import load_library
from perfmodel.memo import applying
from perfmodel.scenario import ClusterSize, Scenario
from perfmodel.scenario.sections.plan import Money
from perfmodel.studies.advise.model import Proposed, Touches
from perfmodel.studies.plan.decisions import one_off_price
from perfmodel.topology.model import Gpu, Topology
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.spec import NodeSpec, nic_ports
from perfmodel.training.strategies import STRATEGIES
from perfmodel.workload.model import Workload

Rows = tuple[tuple[bool, Proposed], ...]
"""Changes, and whether each is one here."""

LOSSY = "gradients lose information: compare the loss over a few thousand steps"
COARSER = "gradients are rounded to {bits} for the sum over GPUs"
FOLLOW = "the batch: learning rate and epochs have to follow"

_HOOKS: Mapping[str, tuple[str, Any, Touches, str]] = {
    "fp16": ("fp16 hook", "fp16", "rounding", COARSER.format(bits="10 bits")),
    "bf16": ("bf16 hook", "bf16", "rounding", COARSER.format(bits="7 bits")),
    "powersgd": ("PowerSGD hook", {"kind": "powersgd", "rank": 4}, "training", LOSSY),
}
"""Name, section as a file has it, what it touches, and what it costs."""

REDUCED_IN = {"fsdp": "reduce_dtype", "zero": "communication_data_type"}
"""Fields of strategies for the dtype that gradients travel in."""

_NARROWER = {
    "fp32": ("tf32", "bf16", "fp16"),
    "tf32": ("bf16", "fp16"),
    "fp16": ("fp8",),
    "bf16": ("fp8",),
}
"""Precisions of matrix products that are quicker than one."""

_PRECISIONS: Mapping[str, tuple[Touches, str]] = {
    "tf32": ("rounding", "products of 10 bits of mantissa"),
    "bf16": ("rounding", "products of 7 bits of mantissa (autocast)"),
    "fp16": (
        "rounding",
        "products of 10 bits of mantissa, with loss scaling (autocast, GradScaler)",
    ),
    "fp8": ("training", "products in fp8: compare the loss over a few thousand steps"),
}
"""What a precision of matrix products touches, and what it costs."""

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

_ComputeChange = tuple[str, str, Any, tuple[str, ...], dict[str, Any]]
"""Text, field of ``compute``, its value, values with which it would be no change (none: any that is
set), and more of `Proposed`."""

_KERNELS: tuple[_ComputeChange, ...] = (
    ("channels-last layout", "channels_last", True, (), {"takes_article": True}),
    ("torch.compile", "compiled", True, (), {"note": "compiling takes minutes at the start"}),
    (
        "CUDA graphs",
        "cuda_graphs",
        True,
        (),
        {"note": "shapes have to stay the same", "is_plural": True},
    ),
    ("fused optimizer", "optimizer_kernels", "fused", ("fused",), {"takes_article": True}),
    ("fused attention", "fused_attention", True, (), {}),
)

_OF_MEMORY = {"about": "recomputation"}
_LESS_RECOMPUTED: tuple[_ComputeChange, ...] = (
    ("no recomputation", "recompute", "none", ("none",), _OF_MEMORY),
    ("selective recomputation", "recompute", "selective", ("selective", "none"), _OF_MEMORY),
    ("no offloading of activations", "offload_activations", "none", ("none",), _OF_MEMORY),
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
        channels = () if gpu.accelerator else _channels(scenario)
        yield from applying(*channels, *_hooks(scenario, workload))
        yield from _strategies(scenario)
    if predicted:
        yield from applying(*_batches(scenario), *_of_compute(scenario, _LESS_RECOMPUTED))
    if predicted and scenario.compute.measured_step is None:
        for precision in _NARROWER.get(scenario.compute.precision, ()):
            if precision in gpu.peak_flops:
                text, fields = f"{precision} arithmetic", {"compute.precision": precision}
                yield Proposed(text, fields, "precision", *_PRECISIONS[precision])
        yield from applying(*(() if gpu.accelerator else _of_compute(scenario, _KERNELS)))
    yield from applying(*_degrees(scenario))


def _channels(scenario: Scenario) -> Rows:
    """List more channels of NCCL than it chooses, which carry small messages of many NICs."""
    library = scenario.library
    is_free = library.channels is None and not set(library.env) & _CHANNELS
    return tuple(
        (
            load_library(library.name).nccl_tuner and is_free,
            Proposed(
                f"at least {least} channels of NCCL",
                {"library.env": {**library.env, "NCCL_MIN_CTAS": str(least)}},
                "channels",
                note="multiprocessors that kernels of communication take from others",
                is_plural=True,
            ),
        )
        for least in LEAST_CHANNELS
    )


def _hooks(scenario: Scenario, workload: Workload) -> Rows:
    """List gradients that travel narrower, by the own field of each strategy."""
    own, is_wide = scenario.strategy, any(tensor.dtype == "fp32" for tensor in workload.tensors)
    used = own.hook.kind if own.kind == "ddp" and own.mixed_precision is None else None
    field, note = REDUCED_IN.get(own.kind, ""), COARSER.format(bits="7 bits")
    return (
        *(
            (
                used not in (None, hook) and (is_wide or hook == "powersgd"),
                Proposed(
                    text, {"strategy.hook": section}, "hook", touches, costs, takes_article=True
                ),
            )
            for hook, (text, section, touches, costs) in _HOOKS.items()
        ),
        (
            is_wide and bool(field) and getattr(own, field) is None,
            Proposed(
                "gradients in bf16",
                {f"strategy.{field}": "bf16"},
                "hook",
                "rounding",
                note,
                is_plural=True,
            ),
        ),
    )


def _strategies(scenario: Scenario) -> Iterator[Proposed]:
    own = scenario.strategy
    if STRATEGIES[own.kind].loops is not None:
        note = "another algorithm than with servers: updates are synchronous"
        yield Proposed("DDP", {"strategy": {"kind": "ddp"}}, "strategy", "training", note)
        return
    if own.kind == "local_sgd" or (own.kind == "ddp" and own.joined_gpus):
        return  # all others are another algorithm
    more = {"accumulate": own.accumulate} if own.accumulate > 1 else {}
    for text, section in _STRATEGIES:
        fields: dict[str, Any] = {"strategy": {**section, **more}}
        if section["kind"] == own.kind:  # its other settings stay
            differing = (each for each in section.items() if getattr(own, each[0]) != each[1])
            fields = {f"strategy.{name}": value for name, value in differing}
        if fields:
            yield Proposed(text, fields, "strategy")
    precision = scenario.compute.precision
    if precision in ("bf16", "fp16") and getattr(own, "param_dtype", None) is None:
        casts = {"param_dtype": precision, "reduce_dtype": "fp32"}
        fields = {"strategy": {"kind": "fsdp", **casts, **more}}
        if own.kind == "fsdp":
            fields = {f"strategy.{name}": value for name, value in casts.items()}
        text, note = f"FSDP with parameters in {precision}", "layers run in it, without autocast"
        yield Proposed(text, fields, "strategy", "rounding", note)


def _batches(scenario: Scenario) -> Iterator[tuple[bool, Proposed]]:
    """List larger micro-batches of the same batch, larger batches, and more micro-steps."""
    training, count = scenario.training, scenario.strategy.accumulate
    per_gpu, total = training.batch_per_gpu, training.global_batch or 0
    can_accumulate = "accumulate" in type(scenario.strategy).model_fields

    def batch(times: int) -> dict[str, Any]:
        return {} if per_gpu is None else {"training.batch_per_gpu": times * per_gpu}

    yield (
        can_accumulate and count % 2 == 0,
        Proposed(
            f"larger micro-batches ({count // 2} a step)",
            {"strategy.accumulate": count // 2, **batch(2)},
            "batch",
            is_plural=True,
        ),
    )
    fields = {"training.global_batch": 2 * total}
    yield (
        total > 0,
        Proposed("twice the global batch", fields, "batch", "training", f"twice {FOLLOW}"),
    )
    if per_gpu is None or total:
        return
    for factor in (2, 4):
        note, text = f"{factor} times {FOLLOW}", f"batch {factor * per_gpu:,} per GPU"
        yield True, Proposed(text, batch(factor), "batch", "training", note)
        fields = {"strategy.accumulate": factor * count}
        text = f"{factor * count} micro-batches a step"
        yield can_accumulate, Proposed(text, fields, "batch", "training", note, is_plural=True)
    text = f"batch {2 * per_gpu:,} per GPU with full recomputation"
    recomputed, note = {**batch(2), "compute.recompute": "full"}, f"2 times {FOLLOW}"
    yield (
        scenario.compute.recompute != "full",
        Proposed(text, recomputed, "batch", "training", note),
    )


def _of_compute(scenario: Scenario, changes: Sequence[_ComputeChange]) -> Rows:
    """List other values of fields of ``compute``."""
    return tuple(
        (
            getattr(scenario.compute, field) not in same
            if same
            else not getattr(scenario.compute, field),
            Proposed(text, {f"compute.{field}": value}, **{"about": field, **more}),
        )
        for text, field, value, same, more in changes
    )


def _degrees(scenario: Scenario) -> Rows:
    """List degrees of a model that is split over GPUs, and the schedule of its pipeline."""
    parallel, is_weak = scenario.parallel, scenario.training.scaling == "weak"
    half, stages = parallel.tensor // 2, parallel.pipeline.stages
    is_1f1b = stages > 1 and parallel.pipeline.schedule == "1f1b"
    sequences = "sequence parallelism"
    return (
        (
            parallel.tensor > 1,
            Proposed(
                f"tensor degree {half}",
                {"parallel.tensor": half} if half > 1 else {"parallel": _without_tensor(scenario)},
                "tensor degree",
                "training" if is_weak else "nothing",
                "the global batch changes with the data-parallel ranks" if is_weak else "",
            ),
        ),
        (
            parallel.tensor > 1 and not parallel.sequence_parallel,
            Proposed(sequences, {"parallel.sequence_parallel": True}, sequences),
        ),
        *(
            (is_1f1b, Proposed(text, {"parallel.pipeline": {"stages": stages, **more}}, "schedule"))
            for text, more in _SCHEDULES
        ),
    )


def _without_tensor(scenario: Scenario) -> dict[str, Any]:
    """Return the section ``parallel`` as written, without what only a tensor-parallel group has."""
    written = (scenario.origin.content.get("parallel") or {}).items()
    of_tensors = {"tensor", "sequence_parallel", "overlap", "parallel_loss"}
    return {name: value for name, value in written if name not in of_tensors}


# ---------------------------------------------------------------- changes of hardware

GBIT_Bps = 1e9 / 8
ADAPTERS_GBIT = (1, 10, 25, 50, 100, 200, 400, 800)
"""Rates of Ethernet and InfiniBand adapters that are sold: IEEE 802.3by to df, NVIDIA's ConnectX-4
to ConnectX-8 data sheets."""
TIMES_QUICKER = (2, 4)
"""How many times the present rate of adapters is offered, at least."""
_FABRICS: tuple[tuple[str, str, Any, str, str], ...] = (
    (
        "rail-optimised fabric",
        "fabric",
        "rail-optimised",
        "fabric",
        "other cables: each adapter of a server to a leaf of its own",
    ),
    (
        "no oversubscription",
        "fabric.oversubscription",
        1.0,
        "fabric",
        "the price of more uplinks and spine switches",
    ),
    ("adaptive routing", "fabric.routing", "adaptive", "routing", "switches and adapters that can"),
)
"""Text, field of ``cluster``, its value, what it is about, and what it costs."""
NO_PRICE = "the price of the adapters, their ports and cables"


def find_adapter(node: NodeSpec | Topology) -> tuple[float | None, int]:
    """Return a network adapter's rate by its data sheet, in bytes per second, and their number.

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
        yield from applying(*_fabric(scenario, node, routing))
    if not isinstance(node, Topology) and node.power_limit is not None:
        full_W = f"{load_gpu(node.gpu).power_W:g} W"
        yield Proposed(
            f"boards at their {full_W}",
            {"cluster.node.power_limit": full_W},
            "power",
            "hardware",
            "power and cooling of the racks",
            is_plural=True,
        )
    yield from _planned(scenario, size)


POWER_SHARES = (0.85, 0.7, 0.55)
"""Limits on the boards' power that are tried, of their data sheet's; above the least of the law."""


def list_power_limits(scenario: Scenario, node: NodeSpec | Topology) -> Iterator[Proposed]:
    """List limits below the present one, where times follow from the GPU's rates."""
    compute = scenario.compute
    stated = compute.source != "roofline" or compute.measured_step is not None
    if isinstance(node, Topology) or stated or scenario.cluster.mixed:
        return
    full_W = load_gpu(node.gpu).power_W
    for share in POWER_SHARES if full_W is not None else ():
        limit_W = 10 * round(share * (full_W or 0.0) / 10)
        if limit_W < (node.power_limit or full_W or 0.0):
            yield Proposed(
                f"boards limited to {limit_W:g} W",
                {"cluster.node.power_limit": f"{limit_W:g} W"},
                "power",
                "hardware",
                limit_W=float(limit_W),
                is_plural=True,
            )


def _adapters(scenario: Scenario, node: NodeSpec) -> Iterator[Proposed]:
    rate_Bps, count = find_adapter(node)
    if rate_Bps is None:
        return
    own = 1.0 if scenario.what_if is None else scenario.what_if.network_bandwidth
    offered = [
        next((each for each in ADAPTERS_GBIT if each * GBIT_Bps >= 0.99 * times * rate_Bps), None)
        for times in TIMES_QUICKER
    ]
    for gbit in dict.fromkeys(rate for rate in offered if rate is not None):
        yield Proposed(
            f"{f'{count} x ' if count > 1 else ''}{gbit} Gbit/s adapters and switches",
            {"what_if.network_bandwidth": own * gbit * GBIT_Bps / rate_Bps},
            "network adapter",
            "hardware",
            NO_PRICE,
            is_plural=True,
        )


def _fabric(scenario: Scenario, node: NodeSpec, routing: float) -> Rows:
    fabric = scenario.cluster.fabric
    if fabric is None:
        return ()
    holds = {
        "rail-optimised fabric": fabric.kind in ("leaf-spine", "fat-tree")
        and len(nic_ports(node)) > 1,
        "no oversubscription": (fabric.oversubscription or 1.0) > 1.0,
        "adaptive routing": routing > 1.0 and fabric.routing != "adaptive",
    }
    return tuple(
        (holds[text], Proposed(text, {f"cluster.{field}": value}, about, "hardware", note))
        for text, field, value, about, note in _FABRICS
    )


def _planned(scenario: Scenario, size: ClusterSize) -> Iterator[Proposed]:
    """List upgrades of the scenario's plan, at their prices; not those of other nodes."""
    if scenario.plan is None:
        return
    own = {each.name for each in scenario.plan.candidates if each.node == scenario.cluster.node}
    for upgrade in scenario.plan.upgrades:
        fields = {
            name: value
            for name, value in upgrade.set.items()
            if name.partition(".")[0] not in {"plan", "sweep", "scale"}
        }
        if fields and (upgrade.candidates is None or not own.isdisjoint(upgrade.candidates)):
            price = one_off_price(upgrade, size.nodes)
            rent = _of_all_gpus(upgrade.price_per_gpu_hour, size)
            note = "its price is not stated" if price is None and rent is None else ""
            yield Proposed(upgrade.name, fields, "upgrade", "hardware", note, price, rent)


def _of_all_gpus(each: Money | None, size: ClusterSize) -> Money | None:
    """Return an hour's price of all GPUs."""
    return None if each is None else Money(each.amount * size.gpus, each.currency)


def hourly_price(scenario: Scenario, size: ClusterSize) -> Money | None:
    """Return the price of an hour of the cluster, where the plan has one for such nodes."""
    rents = (
        each.price_per_gpu_hour
        for each in (() if scenario.plan is None else scenario.plan.candidates)
        if each.node == scenario.cluster.node and each.price_per_gpu_hour is not None
    )
    return _of_all_gpus(next(rents, None), size)
