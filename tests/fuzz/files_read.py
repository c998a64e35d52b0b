"""Right files of every other kind that commands read, and values of other types in them."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

from tests.fuzz import logs, samples

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 400,
    "max_position_embeddings": 128,
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}
TENSORS = {
    "__metadata__": {"format": "pt"},
    "a.weight": {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]},
    "b.bias": {"dtype": "BF16", "shape": [16], "data_offsets": [128, 160]},
}
INDEX = {
    "metadata": {"total_size": 160},
    "weight_map": {"a.weight": "m.safetensors", "b.bias": "m.safetensors"},
}
GRAPH = {
    "directed": False,
    "multigraph": False,
    "graph": {"library": "nccl"},
    "nodes": [{"id": n, "kind": "gpu", "model": "a100-sxm4-80gb"} for n in range(4)],
    "edges": [
        {"source": n, "target": (n + 1) % 4, "bandwidth": "25 GB/s", "latency": "1 us"}
        for n in range(4)
    ],
}
MEGATRON = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --bf16 --swiglu"
)
META = """\
sweep_id,collective,gpu,nodes,gpus_per_node,nranks,intra_node,inter_node,nic_count_per_node,nic_gbps,proc_model,trust
one,all_reduce,A100-SXM4-80GB,1,8,8,NVLink3 NVSwitch,none,,,single process 8 GPUs,4
two,all_reduce,H100-SXM5-80GB,2,8,16,NVLink4 NVSwitch,InfiniBand NDR,8,400,1 GPU/process,5
"""
TIMES = "size_bytes,time_us\n1024,40\n1048576,90\n268435456,2500\n"
STEPS = """\
scenario,cluster.nodes,step_s,peak_GB
own.yaml,1,0.01,2.5
own.yaml,2,0.02,
"""
LONG = ("9" * 5000, "9" * 400, "1e400", "-" + "7" * 25)
TYPES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**15,
    1e300,
    "x",
    "",
    "7",
    [],
    {},
    [1],
    {"a": 1},
    [[1]],
    "y" * 30_000,
    float("inf"),
    float("nan"),
)
"""One of each type and size, to stand where another is expected."""


@cache
def trace() -> dict[str, Any]:
    """A profiler's trace of a small training."""
    from tests.traces.kineto.made_trace import MadeTrace

    return MadeTrace(steps=3).document()


def safetensors(header: Any) -> bytes:
    """Write a file of tensors, whose weights are zeros."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(160)


def other_type(document: Any, rng: random.Random) -> Any:
    """Put a value of another type or size in one place of a document, or take the place away."""
    places: list[tuple[Any, Any]] = []
    copied = json.loads(json.dumps(document))

    def walk(part: Any) -> None:
        keys = (
            part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        )
        for key in keys:
            places.append((part, key))
            walk(part[key])

    walk(copied)
    if not places or rng.random() < 0.02:
        return rng.choice(TYPES)
    holder, key = rng.choice(places)
    if rng.random() < 0.15:
        del holder[key]
    else:
        holder[key] = rng.choice(TYPES)
    return copied


def other_number(text: str, rng: random.Random) -> str:
    """Put a number beyond all bounds, or a word, in the place of one."""
    places = list(re.finditer(r"\d+(?:\.\d+)?", text))
    if not places:
        return text
    place = rng.choice(places)
    new = rng.choice((*LONG, "x", "", "-1", "0", "1e300", "nan", "inf"))
    return text[: place.start()] + new + text[place.end() :]


def other_attribute(text: str, rng: random.Random) -> str:
    """Put another value in one attribute of XML, or take it away."""
    places = list(re.finditer(r'\s[\w:]+="[^"]*"', text))
    if not places:
        return text
    place = rng.choice(places)
    new = rng.choice(
        ("", *(f'{place[0].partition("=")[0]}="{each}"' for each in (*LONG, "x", "", "-1", "0x")))
    )
    return text[: place.start()] + new + text[place.end() :]


def changed_json(document: Any, rng: random.Random) -> bytes:
    """Change a document by its values, mostly, or its text."""
    if rng.random() < 0.15:
        return other_number(json.dumps(document, indent=1), rng).encode()
    return json.dumps(other_type(document, rng), indent=1).encode()


LOGS = {
    "calibrate": (samples.NCCL_TESTS, logs.P2P, logs.NVBANDWIDTH),
    "import": (samples.MATRIX, samples.IBNET, logs.P2P_STATUS, samples.NCCL_XML),
}
JSON_LOGS = tuple(
    json.loads(text)
    for text in (samples.MEASUREMENT, logs.NVBANDWIDTH_JSON, logs.NCCL_JSON, logs.RCCL_JSON)
)
