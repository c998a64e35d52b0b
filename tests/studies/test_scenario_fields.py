"""Every field of a scenario changes an answer, or is refused by its name, or says why it may not.

The fields come from the schema, so that a new one is tried as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfmodel.files import plain
from perfmodel.files.read import parse_yaml
from perfmodel.report.run.text import to_json
from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.studies.run import one_loop_size, run_scenario
from perfmodel.studies.run.steps import one_size
from tests.fields import Document, acts, list_fields, other_values, value_at

BASE = """
perfmodel: 1
model: {file: small.yaml}
compute: {precision: fp16}
strategy: {kind: ddp}
cluster: {node: v100-x8-25g, nodes: 2, gpus_per_node: 2, fabric: {kind: one-switch}}
training: {batch_per_gpu: 8}
"""

SIZES = (300_000, 2_000_000, 500_000, 1_000_000, 1_500_000)
"""Elements of the parameters of the small model, one tensor a layer: a step is soon simulated."""


POWER_SGD = (
    "powersgd, start_iteration: 0, use_error_feedback: false, warm_start: false, rank: 2, "
    "min_compression_rate: 20.0"
)


@dataclass(frozen=True)
class Context:
    """A scenario, and which of its sections are tried.

    `changes`: sections in place of those of `BASE`. `idle`: fields that do nothing here, and why.
    `implied`: values of fields that hold here without being said.
    """

    changes: str
    tried: str
    idle: Mapping[str, str] = field(default_factory=dict)
    implied: Mapping[str, Any] = field(default_factory=dict)


NO_EVENT = "leaves out what this scenario does not have; contexts with events and jobs try it"
NO_CHANCE = "nothing is drawn at random; the contexts of jitter and of placement try it"
OTHER_COMMAND = "another command reads it, and `compare` says so; its own context tries it"
NO_CONVOLUTION = "the model has no convolution to lay out; the context of a job tries it"
NO_ATTENTION = "the model has no attention to fuse; the context of a transformer tries it"
BUSY = "the device hides the host; the contexts of a job and of a transformer try it"
RINGS = dict.fromkeys(
    ("cluster.fabric.oversubscription", "cluster.fabric.routing"),
    "a ring leaves each leaf once, so that one uplink is enough; the test of fabrics tries it",
)
DRAGONFLY = dict.fromkeys(
    ("cluster.fabric.radix", "cluster.fabric.global_cables"),
    "a ring leaves each group once, so that one cable is enough; the test of fabrics tries it",
)
USUAL = {"cluster.fabric.routing": "ecmp", "compute.source": "roofline", "training.scaling": "weak"}
OWN_CHOICE = {"library.algorithm": "ring", "library.protocol": "simple"}
A100 = "cluster: {node: dgx-a100, nodes: 2, gpus_per_node: 2, fabric: rail-optimised}\n"
H100 = (
    "model: {name: bert-base, dtype: bf16}\n"
    "cluster: {node: dgx-h100, nodes: 2, gpus_per_node: 2, fabric: rail-optimised}\n"
)
SHARDED = "strategy: {kind: megatron, use_distributed_optimizer: true}\n"
CONTEXTS = {
    "fp8, delayed": Context(
        H100 + SHARDED + "compute: {precision: fp8, fp8: {recipe: delayed}}",
        "compute.fp8.",
        implied={"compute.fp8.library": "transformer_engine", "compute.fp8.reduce_amax": True},
    ),
    "fp8, current": Context(
        H100 + SHARDED + "compute: {precision: fp8, fp8: {recipe: current, "
        "first_last_layers_bf16: true}}",
        "compute.fp8.",
        implied={"compute.fp8.library": "transformer_engine"},
    ),
    "fp8, gathered": Context(
        H100 + "strategy: {kind: fsdp}\ncompute: {precision: fp8, fp8: {recipe: tensorwise, "
        "enable_fsdp_float8_all_gather: true}}",
        "compute.fp8.",
        implied={"compute.fp8.library": "torchao"},
    ),
    "job": Context(
        "model: {name: resnet18}",
        "",
        {
            "compute.fused_attention": NO_ATTENTION,
            "seed": NO_CHANCE,
            "sweep": OTHER_COMMAND,
            "plan": OTHER_COMMAND,
            "cluster.pool": "one switch joins any number of nodes; the context of a pool tries it",
        },
        USUAL,
    ),
    "what if": Context(
        "what_if: {compute: 1.5}",
        "what_if.",
        {
            "what_if.jitter": NO_EVENT,
            "what_if.events": NO_EVENT,
            "what_if.jobs": NO_EVENT,
            "what_if.library_rates": "the network is not TCP; the context of these rates tries it",
        },
    ),
    "library's own rates": Context(
        "cluster: {node: azure-ncv4, nodes: 2, gpus_per_node: 1, fabric: one-switch}\n"
        "what_if: {compute: 1.5}",
        "what_if.library_rates",
    ),
    "transformer": Context(
        "model: {name: bert-base}",
        "model. compute.",
        {"compute.channels_last": NO_CONVOLUTION},
        USUAL,
    ),
    "adapters": Context(
        "model: {name: bert-base, adapters: {targets: [query, value]}}",
        "model.adapters.",
        {"model.adapters.a2a_experimental": "no tensor group shares maps here"},
    ),
    "mixed precision of DDP": Context(
        "strategy: {kind: ddp, mixed_precision: {param_dtype: fp16, reduce_dtype: fp16}}",
        "strategy.mixed_precision.",
    ),
    "model by its shape": Context(
        "model: {transformer: {hidden: 256, layers: 2, vocab: 1k, window: 16}, tokens: 64}",
        "model.transformer. model.tokens",
    ),
    "experts by their shape": Context(
        "model: {transformer: {hidden: 256, layers: 4, vocab: 1k, experts: {count: 4}}, "
        "tokens: 64}",
        "model.transformer.experts.",
    ),
    "model in a file": Context(
        "model: {file: model.csv}\ncompute: {precision: fp16, source: file, times: times.csv}",
        "model.",
    ),
    "times in a file": Context(
        "compute: {precision: fp16, source: file, times: times.csv}",
        "compute.",
        {"compute.fused_attention": NO_ATTENTION, "compute.cuda_graphs": BUSY},
    ),
    "strong scaling": Context(
        "training: {global_batch: 64}", "training.", implied={"training.scaling": "strong"}
    ),
    "data parallel": Context(
        "strategy: {kind: data_parallel}\ncluster: {node: v100-x8-25g, gpus_per_node: 2}",
        "strategy. model. compute.",
        {"compute.fused_attention": NO_ATTENTION, "compute.channels_last": NO_CONVOLUTION},
        USUAL,
    ),
    "horovod": Context("strategy: {kind: horovod, cycle_time: 1 ms}", "strategy."),
    "priority": Context("strategy: {kind: priority, partition_size: 4 MB}", "strategy."),
    "parameter server": Context(
        "strategy: {kind: parameter_server, mode: bounded, staleness: 1, servers: 2}\n"
        "cluster: {node: v100-x8-25g, nodes: 2, gpus_per_node: 2, fabric: one-switch}",
        "strategy.",
    ),
    "accumulating": Context("strategy: {kind: ddp, accumulate: 2}", "strategy."),
    **{
        f"hook {fields.partition(',')[0]}": Context(
            f"strategy: {{kind: ddp, hook: {{kind: {fields}}}}}",
            "strategy.hook.",
            {"strategy.hook.batch_tensors_with_same_shape": "no two tensors are alike here"}
            if fields.startswith("powersgd")
            else {},
        )
        for fields in (
            POWER_SGD,
            "quantization_perchannel, bucket_size: 4096",
        )
    },
    "uneven inputs": Context("strategy: {kind: ddp, join: true}", "strategy."),
    "local sgd": Context(
        "strategy: {kind: local_sgd, period: 2, gradient_gpus: 2, warmup_steps: 0}", "strategy."
    ),
    "local sgd by levels": Context(
        "strategy: {kind: local_sgd, levels: [{period: 2, gpus: 2}]}", "strategy."
    ),
    **{
        f"fabric {shape}": Context(
            f"cluster: {{node: dgx1-v100, nodes: 8, gpus_per_node: 4, fabric: {{kind: {shape}"
            f"{'' if shape == 'one-switch' else ', radix: 8, oversubscription: 2'}}}}}",
            "cluster.fabric.",
            RINGS if shape == "rail-optimised" else {},
            {"cluster.fabric.routing": "ecmp" if shape == "one-switch" else "adaptive"},
        )
        for shape in ("one-switch", "leaf-spine", "rail-optimised", "fat-tree")
    },
    **{
        f"fabric {fabric.partition(',')[0]}": Context(
            f"cluster: {{node: dgx1-v100, nodes: 8, gpus_per_node: 4, fabric: {{kind: {fabric}}}}}",
            "cluster.fabric.",
            DRAGONFLY if usual == "adaptive" else {},
            {"cluster.fabric.routing": usual},
        )
        for fabric, usual in (
            ("torus", "dimension-ordered"),
            ("hypercube", "dimension-ordered"),
            ("dragonfly, radix: 10, routers_per_group: 2, hosts_per_router: 1", "adaptive"),
        )
    },
    "some of a pool": Context(
        "cluster: {node: ethernet-10g, nodes: 4, pool: 16, placement: random, fabric: "
        "{kind: leaf-spine, hosts_per_leaf: 4, oversubscription: 4}}",
        "cluster.pool cluster.placement seed",
    ),
    **{
        f"library {name}": Context(
            A100 + f"library: {{name: {name}}}\nstrategy: {{bucket_cap: 4 MiB}}",
            "library.",
            implied={} if name == "nccl" else OWN_CHOICE,
        )
        for name in ("nccl", "plain", "gloo", "mpi")
    },
    "processes on CPUs": Context(
        "cluster: {node: cpu-loopback, gpus_per_node: 2}\ncompute: {precision: fp32}\n"
        "library: {name: gloo}\nmodel: {name: resnet18}",
        "library.",
        implied=OWN_CHOICE,
    ),
    "slow": Context("events: [{slow: {ranks: [1], by: 2, steps: [3]}}]", "events.0.slow. what_if"),
    "jitter": Context("events: [{jitter: {cv: 0.01}}]", "events. seed"),
    "degrade": Context(
        'events: [{degrade: {link: n0/nic0, by: 4, at: "10 ms", until: "50 ms"}}]',
        "events.0.degrade.",
    ),
    "down": Context(
        A100 + 'events: [{down: {link: n0/nic0 -- fabric/leaf0, at: "1 ms", '
        'reroute_after: "50 ms"}}]',
        "events.0.down.",
    ),
    "lose": Context(
        A100 + 'events: [{lose: {nic: n0/nic0, at: "1 ms", reroute_after: "50 ms"}}]',
        "events.0.lose.",
    ),
    "traffic": Context(
        "events: [{traffic: {from: n0/cpu0, to: n1/cpu0, rate: 1 GB/s, nbytes: 20 MB, "
        'every: "50 ms", at: "1 ms"}}]',
        "events.0.traffic.",
    ),
    "events left out": Context(
        "events: [{jitter: {cv: 0.01}}]\nwhat_if: {compute: 1.5}", "what_if.jitter what_if.events"
    ),
    "other GPUs": Context(
        "cluster: {node: v100-x8-25g, gpus_per_node: 2, "
        "mixed: [{nodes: [0], gpu: v100-pcie-16gb}]}",
        "cluster.mixed.0.",
    ),
    "curve over GPUs": Context("scale: {gpus: [1]}", "scale."),
    "curve over nodes": Context("scale: {nodes: [1]}", "scale."),
    "jobs": Context(
        "cluster: {node: ethernet-100g, nodes: 2, fabric: "
        "{kind: leaf-spine, hosts_per_leaf: 2, oversubscription: 2}, placement: spread}\n"
        "strategy: {bucket_cap: 100 MiB}\ncompute: {precision: fp16}\n"
        "jobs: [{model: {file: small.yaml}, strategy: {bucket_cap: 1 MiB}, batch_per_gpu: 8, "
        "nodes: 2}]\n"
        "what_if: {compute: 1.5}",
        "jobs. cluster.placement what_if.jobs",
        {
            "jobs.0.strategy.process_group_gpus": (
                "its two GPUs are one group; the context of a job tries it"
            ),
            "jobs.0.strategy.static_graph": (
                "it changes the first step of a job, which is past; the context of a job tries it"
            ),
        },
    ),
}

VALUES: Mapping[str, list[Any]] = {
    "perfmodel": [2],
    "name": ["resnet34", "bert-large"],
    "file": ["model.csv", "other.csv"],
    "times": ["twice.csv"],
    "library": [{"name": "gloo"}],
    "plan": [
        {"target": {"samples": 1}, "candidates": [{"name": "a", "node": "dgx-a100", "nodes": [1]}]}
    ],
    "model": ["vgg11"],
    "experts": [{"imbalance": 0.5}],
    "adapters": [{"targets": ["query", "value"]}],
    "targets": [["query"]],
    "mixed_precision": [{"param_dtype": "fp16"}],
    "transformer": [{"hidden": 64, "layers": 1}],
    "model.transformer.experts": [{"count": 4}],
    "config": ["no-such-config.json"],
    "megatron": ["--num-layers 1 --hidden-size 64 --num-attention-heads 2 --vocab-size 99"],
    "parallel": [{"tensor": 2}],
    "compute.source": ["file", "roofline"],
    "compute.fp8": [{"recipe": "current"}],
    "compute.fp8.library": ["transformer_engine", "torchao"],
    "filter_fqns": [["query", "cls"]],
    "training.scaling": ["strong", "weak"],
    "bucket_caps": [["1 MiB", "4 MiB"]],
    "hook": ["fp16", "powersgd"],
    "process_group_gpus": [2],
    "gradient_gpus": [4],
    "levels": [[{"period": 1, "gpus": 2}]],
    "cluster.graph": ["no-such-graph.json"],
    "cluster.node": ["ethernet-25g", "v100-x8-100g"],
    "gpu": ["a100-pcie-40gb"],
    "gpus": [[2]],
    "scale.nodes": [[2]],
    "cluster.mixed": [[{"nodes": [1], "gpu": "v100-pcie-16gb"}]],
    "cluster.fabric": ["leaf-spine"],
    "dims": [[2, 4], [8]],
    "cluster.fabric.routing": ["ecmp", "dimension-ordered", "minimal", "valiant"],
    "jobs.0.model": ["resnet18"],
    "kind": ["leaf-spine", "rail-optimised", "one-switch", "fat-tree"],
    "scale": [{"gpus": [1]}],
    "events": [[{"slow": {"ranks": [1], "by": 2}}]],
    "jobs": [[{"model": "resnet18", "batch_per_gpu": 8, "nodes": 2}]],
    "library.name": ["gloo", "nccl"],
    "library.version": ["2.4.8"],
    "library.env": [{"NCCL_PROTO": "LL"}],
    "profile": ["no-such-profile"],
    "what_if": [{"compute": 2}],
    "sweep": [{"grid": {"seed": [1, 2]}}],
    "ranks": [[0], [2]],
    "nodes": [[1]],
    "steps": [[4]],
    "library.processes": ["per-host"],
    "link": ["n1/nic0", "n0/pcie0"],
    "nic": ["n1/nic0", "n0/nic1"],
    "from": ["n0/gpu0", "n1/gpu0"],
    "to": ["n1/gpu0", "n0/gpu1", "1 GB/s"],
    "strategy": [{"bucket_cap": "1 MiB"}],
    "slow": [{"ranks": [0], "by": 2}],
    "jitter": [{"cv": 0.1}],
    "degrade": [{"link": "n0/nic0", "by": 2}],
    "down": [{"link": "n0/nic0"}],
    "lose": [{"nic": "n0/nic0"}],
    "traffic": [{"from": "n0/cpu0", "to": "n1/cpu0", "rate": "1 GB/s"}],
}
"""Values that no schema can give: names, lists, whole sections; by field or by its last part."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that scenarios name."""
    place = tmp_path_factory.mktemp("fields")
    names = [f"layer{number}" for number in range(len(SIZES))]
    for name, dtype in (("model.csv", "fp32"), ("other.csv", "fp16")):
        lines = [
            f'{layer}.weight,"{size}",{dtype}' for layer, size in zip(names, SIZES, strict=True)
        ]
        (place / name).write_text("\n".join(["name,shape,dtype", *lines]))
    for name, time in (("times.csv", "1 ms"), ("twice.csv", "2 ms")):
        lines = ["name,forward,backward", *(f"{layer},{time},{time}" for layer in names)]
        (place / name).write_text("\n".join(lines))
    model = {
        "buffers": "100 kB",
        "parameters": [
            {"name": f"{layer}.weight", "shape": [size // 100, 100]}
            for layer, size in zip(names, SIZES, strict=True)
        ],
        "layers": [
            {
                "name": layer,
                "parameters": [f"{layer}.weight"],
                "kernels": 3,
                "matmul_flops": 500.0 * size,
                "vector": "2 MB",
            }
            for layer, size in zip(names, SIZES, strict=True)
        ],
    }
    (place / "small.yaml").write_text(json.dumps(model))
    image = {"in_channels": 64, "out_channels": 64, "kernel": [3, 3]}
    image |= {"in_size": [56, 56], "out_size": [56, 56]}
    layers = [
        layer | ({"convolution": image, "matmul_flops": None} if number else {})
        for number, layer in enumerate(model["layers"])
    ]
    (place / "images.yaml").write_text(json.dumps(model | {"layers": layers}))
    return place


def document_of(context: Context) -> Document:
    document: Document = dict(plain(parse_yaml(BASE)))
    return document | dict(plain(parse_yaml(context.changes)) or {})


ECHOED = ("scenario", "question", "machine", "assumptions", "sources", "provenance")
"""Parts of an answer that say what was asked."""


ANSWERS: dict[str, object] = {}
"""By document: every field of a context is compared with the same one."""


def scenario_of(document: Document, folder: Path) -> Scenario:
    """The scenario of a document; what it shares with `BASE` is read once."""
    base = read_base(folder)
    sections = base.origin.content.keys() | document.keys()
    changed = {
        name: document.get(name)
        for name in sections
        if document.get(name) != base.origin.content.get(name)
    }
    return change_scenario(base, changed)


@cache
def read_base(folder: Path) -> Scenario:
    path = folder / "asked.yaml"
    path.write_text(f"# How long is a step?{BASE}")
    return load_scenario(path)


def answer(document: Document, folder: Path, *, quick: bool = False) -> object:
    """The answer to a document; `quick`: without its what-ifs and intervals."""
    text = f"{quick} {json.dumps(document)}"
    if text not in ANSWERS:
        with pytest.MonkeyPatch.context() as patch:
            if quick:
                patch.setattr(one_size, "simulate_reliefs", lambda *_: ())
                patch.setattr(one_size, "simulate_uncertainties", lambda *_: None)
                patch.setattr(one_size, "describe_sensitivity", lambda *_: ())
                patch.setattr(one_loop_size, "simulate_loop_reliefs", lambda *_: ())
                patch.setattr(one_loop_size, "simulate_loop_uncertainties", lambda *_: ())
            result = to_json(run_scenario(scenario_of(document, folder)))
        ANSWERS[text] = {
            name: _rounded(part) for name, part in result.items() if name not in ECHOED
        }
    return ANSWERS[text]


def acts_on_run(document: Document, folder: Path, name: str, values: list[Any]) -> bool:
    """Whether a field acts: on the steps alone, or on all of an answer where it does not."""

    def steps(asked: Document) -> object:
        return answer(asked, folder, quick=True)

    return acts(document, steps, name, values) or acts(
        document, lambda asked: answer(asked, folder), name, values
    )


def _rounded(part: object) -> object:
    """Return an answer without the last digits, which the order of additions moves."""
    if isinstance(part, float):
        return float(f"{part:.12g}")
    if isinstance(part, Mapping):
        return {name: _rounded(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_rounded(value) for value in part]
    return part


def values_for(context: Context, name: str) -> list[Any]:
    document = document_of(context)
    last = name.rpartition(".")[2]
    values = VALUES.get(name) or other_values(Scenario, document, name) or VALUES.get(last, [])
    held = (value_at(document, name), context.implied.get(name))
    return [value for value in values if value not in held]


def tried_fields(context: Context) -> list[str]:
    document = document_of(context)
    names = list_fields(Scenario, document)
    parts = tuple(context.tried.split()) or ("",)
    return [name for name in names if name.startswith(parts)]


CASES = [
    pytest.param(context, name, id=f"{label}: {name}")
    for label, context in CONTEXTS.items()
    for name in tried_fields(context)
]


@pytest.mark.parametrize(("context", "name"), CASES)
def test_every_field_acts_or_is_refused(context: Context, name: str, folder: Path) -> None:
    document = document_of(context)
    values = values_for(context, name)
    assert values, f"no other value for {name}: give one in VALUES"
    effect = acts_on_run(document, folder, name, values)
    reason = context.idle.get(name)
    assert effect == (reason is None), f"{name} with {values}: acts {effect}, listed: {reason}"
