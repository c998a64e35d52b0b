"""Questions that make sense: shipped scenarios made small, with a field or a section of another.

Values are drawn from the schema of scenarios, so that most of them are answered.
"""

from __future__ import annotations

import copy
import json
import random
from functools import cache
from typing import Any

from tests.fuzz import samples

TRANSFORMER = {"hidden": 128, "layers": 2, "heads": 4, "vocab": 1000}
MODELS: tuple[dict[str, Any], ...] = (
    {"transformer": TRANSFORMER, "tokens": 128},
    {"transformer": TRANSFORMER | {"layers": 4, "kv_heads": 2, "tied": True}, "tokens": 64},
    {"transformer": TRANSFORMER | {"experts": {"count": 4, "top_k": 2}}, "tokens": 64},
    {"transformer": TRANSFORMER, "tokens": 128, "dtype": "bf16"},
    {"name": "resnet18", "image_size": 64},
    {"name": "dlrm-criteo-kaggle"},
)
NODES = tuple(
    """
    dgx-a100 dgx-h100 v100-x8-25g ethernet-10g rtx4090-x4 mi300x-x8 l40s-x8 hgx-b200 aws-p4d
    gb200-nvl72 dgx1-v100 rtx3090-x2-10g cpu-loopback
    """.split()  # noqa: SIM905
)
ALONE = ("cpu-loopback", "rtx4090-x4", "dgx1-v100")
"""Nodes without a NIC, or none that joins them."""
FABRICS = ("one-switch", "rail-optimised", "leaf-spine", "fat-tree", "dragonfly", None)
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"kind": "ddp"},
    {"kind": "fsdp"},
    {"kind": "fsdp", "version": "megatron"},
    {"kind": "fsdp", "version": 2, "wrap": "auto"},
    {"kind": "zero", "stage": 1},
    {"kind": "zero", "stage": 2},
    {"kind": "zero", "stage": 3},
    {"kind": "megatron", "use_distributed_optimizer": True},
    {"kind": "horovod"},
    {"kind": "local_sgd", "period": 4},
    {"kind": "onebit"},
    {"kind": "priority"},
    {"kind": "zero_redundancy"},
    {"kind": "data_parallel"},
    {"kind": "parameter_server"},
    {"kind": "auto"},
)
QUANTITIES = {
    "2.50 USD/h": ("2 USD/h",),
    "1.3 us": ("1 us", "1 ms", "2 s", "1 d"),
    "93 ms at batch 256": ("9 ms at batch 1", "93 ms"),
    "25 MiB": ("1 MiB", "100 kB", "25 MiB", "1 GiB"),
    "25 GB/s": ("1 GB/s", "100 Gbit/s"),
    "700 W": ("300 W", "700 W"),
    "100_000 USD": ("1000 USD",),
    "0.15 USD/kWh": ("0.15 USD/kWh",),
    "10e9 tokens": ("1e6 tokens", "1e6 samples"),
}
"""Values of each quantity, by the schema's first example of it."""
WORDS = {
    "fabric": FABRICS[:-1],
    "node": NODES,
    "link": ("n0/nic0 -- fabric/sw0", "n0/gpu0 -- n0/nvswitch0", "n0/nic0 -- fabric/leaf0"),
    "nic": ("n0/nic0",),
    "from": ("n0/cpu0", "n[0-1]/cpu0"),
    "to": ("n1/cpu0",),
    "hook": ("fp16", "none"),
    "order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    "gpu": ("h800", "a100-sxm4-80gb", "h100-pcie"),
    "gpus": ("4 x a100", "8 x h100"),
    "extends": NODES,
    "model": ("resnet18", "alexnet"),
    "name": ("resnet18", "nccl", "gloo", "mpi"),
    "version": ("2.18", "2.21.5", "2.27"),
    "targets": ("q_proj", "v_proj"),
    "vocab": (1000, "2k"),
    "hidden": (64, 128),
    "nvlink": ("4", "none"),
    "pcie": ("gen4 x16", "gen5 x8"),
    "cpu": ("epyc", "grace", "genoa"),
    "nics": ("2 x 100 Gbit/s", "none"),
    "strategy": ("ddp", "fsdp"),
}
"""Texts that fields of these names hold."""
MOST = {"nodes": 2, "layers": 8, "samples": 4096}
WHOLES = (1, 1, 2, 2, 3, 4, 8, 64, 1000)
REALS = (0, 0.01, 0.1, 0.5, 1, 1.0, 1.5, 2, 4)


@cache
def schema() -> dict[str, Any]:
    """The schema of scenarios."""
    from perfmodel.scenario.model import Scenario

    return Scenario.model_json_schema()


def _resolved(part: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref", "").rpartition("/")[2]
    return schema()["$defs"][name] if name else part


def valid(part: dict[str, Any], rng: random.Random, name: str = "", depth: int = 0) -> Any:
    """Draw a value that a part of the schema allows, mostly."""
    part = _resolved(part)
    options = part.get("anyOf") or part.get("oneOf")
    if options:
        named = [each for each in options if each.get("type") != "null"]
        return valid(rng.choice(options if rng.random() < 0.1 else named), rng, name, depth)
    if "const" in part:
        return part["const"]
    if "enum" in part:
        return rng.choice(part["enum"])
    match part.get("type"):
        case "boolean":
            return rng.random() < 0.5
        case "integer" | "number":
            return _number(part, rng, name)
        case "string":
            choices = QUANTITIES.get(part.get("examples", [""])[0]) or WORDS.get(name)
            return rng.choice(choices) if choices else None
        case "array":
            items = part.get("items", {"type": "integer"})
            return [valid(items, rng, name, depth + 1) for _ in range(rng.choice((1, 2)))]
        case "object":
            return _object(part, rng, depth)
    return None


def _number(part: dict[str, Any], rng: random.Random, name: str) -> float:
    whole = part["type"] == "integer"
    low = part.get("minimum", part.get("exclusiveMinimum", -1) + (1 if whole else 1e-3))
    most = min(part.get("maximum", 1e9), MOST.get(name, 1e9))
    fitting = [each for each in (WHOLES if whole else REALS) if low <= each <= most]
    return rng.choice(fitting) if fitting else low


def _object(part: dict[str, Any], rng: random.Random, depth: int) -> dict[str, Any]:
    fields = part.get("properties", {})
    names = set(part.get("required", ()))
    if depth < 4 and fields:
        names |= set(rng.sample(sorted(fields), min(len(fields), rng.choice((0, 1, 1, 2)))))
    return {name: valid(fields[name], rng, name, depth + 1) for name in sorted(names)}


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """Contents of all scenarios that ship, each made small."""
    from perfmodel.files import plain, read_yaml

    folder = samples.ROOT / "scenarios"
    found = {path.stem: plain(read_yaml(path)) for path in sorted(folder.glob("*.yaml"))}
    return {name: _small(content) for name, content in found.items()}


def _small(content: dict[str, Any]) -> dict[str, Any]:
    """Shrink a scenario to a small model on two nodes at most."""
    small = _shrunk(content)
    is_image = (
        "sequence_length" not in content["model"]
        and content["training"].get("batch_per_gpu", 1) > 1
    )
    kept = {key: value for key, value in content["model"].items() if key in ("dtype", "experts")}
    small["model"] = (
        MODELS[4] if is_image else MODELS[2] if "experts" in kept else MODELS[0]
    ) | kept
    if small.get("parallel", {}).get("expert", 1) > 1:
        small["model"] = MODELS[2] | kept
    if "jobs" in small:
        small["jobs"][0]["model"] = "resnet18"
    small["scale"] = {"gpus": [2]} if small.pop("scale", None) else None
    if small["scale"] is None:
        del small["scale"]
    if "sweep" in small:
        kind, axes = next(iter(small["sweep"].items()))
        small["sweep"] = {kind: {field: values[:2] for field, values in axes.items()}}
    return small


_SMALLEST = {
    **dict.fromkeys(("nodes", "tensor", "expert", "stages", "pipeline", "chunks", "degree"), 2),
    **dict.fromkeys(("batch_per_gpu", "servers", "gpus", "shard_gpus", "hosts_per_leaf"), 2),
    **dict.fromkeys(("micro_batch", "ranks"), 1),
    **dict.fromkeys(("accumulate", "period"), 4),
    **dict.fromkeys(("global_batch", "pool"), 8),
}
"""The largest value of whole numbers, by the name of their field."""


def _shrunk(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        value = {key: each for key, each in value.items() if key != "blocks_per_part"}
        value = {**value, "nodes": [1]} if "by" in value and "nodes" in value else value
        return {key: _shrunk(each, key) for key, each in value.items()}
    if isinstance(value, list):
        parts = [_shrunk(each, name) for each in value[:2]]
        return parts if parts[:1] != parts[1:] else [1, parts[0]]  # sizes of a plan, which grow
    if type(value) is int and name in _SMALLEST:
        return min(value, _SMALLEST[name])
    for old, new in (
        ("n3/", "n1/"),
        ("n5/", "n1/"),
        ("n[0-3]", "n[0-1]"),
        ("n4/", "n2/"),
        ("2 s", "20 ms"),
    ):
        value = value.replace(old, new) if isinstance(value, str) else value
    return value


def scenario(rng: random.Random) -> dict[str, Any]:
    """Return a small scenario with one or a few fields or sections of another."""
    content = copy.deepcopy(_shipped()[rng.choice(sorted(_shipped()))])
    if rng.random() < 0.6:
        content["strategy"] = dict(rng.choice(STRATEGIES))
    if rng.random() < 0.3:
        node, nodes = rng.choice(NODES), rng.choice((1, 2))
        content["cluster"] = {
            "node": node,
            "nodes": nodes,
            "fabric": rng.choice(FABRICS[: 6 if nodes < 2 else 5]),
        }
        content.pop("events", None)
        if node in ALONE:
            content["cluster"]["nodes"] = 1
    kind = content["strategy"]["kind"]
    if kind == "data_parallel":
        content["cluster"]["nodes"] = 1
    content["training"] = (
        {"global_batch": 16} if kind == "auto" else {"batch_per_gpu": rng.choice((1, 2, 4))}
    )
    if kind == "auto":
        content.pop("scale", None)
    if rng.random() < 0.3:
        content["model"] = copy.deepcopy(rng.choice(MODELS))
    if rng.random() < 0.2:
        section = rng.choice(sorted(content))
        other = _shipped()[rng.choice(sorted(_shipped()))]
        content[section] = copy.deepcopy(other.get(section, content[section]))
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        _change(content, rng)
    return content


def _change(content: dict[str, Any], rng: random.Random) -> None:
    """Set one field, in a section that is stated or a new one, to a value of the schema."""
    properties = schema()["properties"]
    usual = [
        name
        for name in properties
        if name in content and name not in ("perfmodel", "sweep", "plan")
    ]
    name = rng.choice(usual) if rng.random() < 0.8 else rng.choice(sorted(properties))
    part, target = properties[name], content
    while isinstance(target.get(name), dict) and rng.random() < 0.9:
        fields = _fields(part, target[name])
        if not fields:
            break
        target = target[name]
        name = rng.choice(sorted(fields))
        part = fields[name]
    value = valid(part, rng, name)
    if value is not None or rng.random() < 0.1:
        target[name] = value


def _fields(part: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """Fields that the schema has for a mapping: of the kind that it states."""
    part = _resolved(part)
    options = [_resolved(each) for each in part.get("anyOf", part.get("oneOf", [part]))]
    flat = [_resolved(inner) for each in options for inner in each.get("oneOf", [each])]
    for option in flat:
        fields = option.get("properties", {})
        kind = fields.get("kind", {})
        if fields and kind.get("const", value.get("kind")) == value.get("kind"):
            return dict(fields)
    return {}


def written(content: dict[str, Any]) -> bytes:
    """Write a scenario; JSON is YAML."""
    return b"# How long is a step?\n" + json.dumps(content, indent=1).encode()
