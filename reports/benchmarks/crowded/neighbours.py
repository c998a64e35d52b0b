"""Time scenarios drawn at random in which much happens at once.

    python reports/benchmarks/crowded/neighbours.py [FIRST PAST [SEED]]

Prints a Markdown table of those numbered from FIRST up to PAST: CPU seconds of a process of its
own, imports included, its peak memory, and what was asked where it took long or did not end. By
default 130 of them, of which 106 are answered (the others are refused with a reason), in about
twenty minutes.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from benchmarks.crowded.run import command_cost  # noqa: E402  (found by the line above)

LONG_S = 60.0
SPINES = "kind: leaf-spine, hosts_per_leaf: 8, oversubscription: 4"
FABRICS = ["rail-optimised", "fat-tree", f"{{{SPINES}}}", "{kind: leaf-spine}"]
FABRICS += ["one-switch", "dragonfly"]
STRATEGIES = ["kind: ddp", "kind: ddp, accumulate: 4", "kind: fsdp", "kind: zero, stage: 3"]
STRATEGIES += ["kind: zero, stage: 1", "kind: fsdp, shard_gpus: 8"]
MODELS = ["gpt2-xl", "bert-large", "llama3-8b", "resnet50"]
OTHERS = ["gpt2-xl", "bert-large", "resnet50", "vgg16"]
KINDS = ["degrade", "jitter per step", "jitter per layer", "bursts", "stream", "slow", "lose"]
DISTRIBUTIONS = ["normal", "lognormal", "gamma", "exponential"]


def draw(number: int, seed: int) -> str:
    """Return a scenario: a job on 8 to 256 nodes, one to three events, up to four other jobs."""
    rng = random.Random(seed * 1000 + number)  # noqa: S311  (no secret)
    model = rng.choice(MODELS)
    node = rng.choice(["dgx-a100", "dgx-h100", "v100-x8-100g", "aws-p4d"])
    is_old = node == "v100-x8-100g" and model != "llama3-8b"
    node = node if is_old or node != "v100-x8-100g" else "dgx-h100"
    nodes = rng.choice([8, 16, 32, 64, 128, 256])
    jobs = rng.choice([0, 0, 1, 2, 3, 4] if nodes <= 64 else [0, 0, 1])
    fabric, strategy = rng.choice(FABRICS), rng.choice(STRATEGIES)
    is_image = model == "resnet50"
    batch = rng.choice([32, 128] if is_image else [1, 4, 16])
    placement = rng.choice(["spread", "packed", "random"])
    pool, network = nodes * (1 + jobs) + 1, f"fabric: {fabric}, placement: {placement}"
    compute = f"precision: {'fp16' if is_old else 'bf16'}, optimizer: "
    lines = [
        "# What does a crowd cost?",
        "perfmodel: 1",
        f"model: {{name: {model}}}",
        f"compute: {{{compute}{'sgd-momentum' if is_image else 'adamw'}}}",
        f"strategy: {{{'kind: ddp' if is_image else strategy}}}",
        f"cluster: {{node: {node}, nodes: {nodes}, pool: {pool}, {network}}}",
        f"training: {{batch_per_gpu: {batch}}}",
    ]
    events = _draw_events(rng, nodes, is_old=is_old)
    lines += [*(["events:"] if events else []), *events, *(["jobs:"] if jobs else [])]
    for job in range(jobs):
        other = rng.choice(OTHERS)
        own = rng.choice([4, 16]) if other in {"gpt2-xl", "bert-large"} else 64
        lines.append(
            f"  - {{name: j{job}, model: {other}, batch_per_gpu: {own}, nodes: {nodes}, "
            f"placement: {placement}}}"
        )
    return "\n".join(lines) + "\n"


def _draw_events(rng: random.Random, nodes: int, *, is_old: bool) -> list[str]:
    events: list[str] = []
    for kind in rng.sample(KINDS, rng.choice([1, 1, 2, 3])):
        if kind.startswith("jitter"):
            if not any("jitter" in each for each in events):
                events.append(_draw_jitter(rng, kind.split()[-1]))
        elif kind != "lose" or not is_old:  # a host with one NIC would be cut off
            events.append(_EVENTS[kind](rng, nodes))
    return [f"  - {each}" for each in events]


def _draw_jitter(rng: random.Random, per: str) -> str:
    kind, cv = rng.choice(DISTRIBUTIONS), rng.choice([0.01, 0.02, 0.03, 0.05])
    return f"jitter: {{kind: {kind}, cv: {cv}, per: {per}}}"


def _draw_stream(rng: random.Random, nodes: int, rest: str = "") -> str:
    last, rate = rng.randrange(1, min(nodes, 16)), rng.choice([1, 10])
    return f'traffic: {{from: "n[0-{last}]/cpu0", to: n{nodes}/cpu0, rate: "{rate} Gbit/s"{rest}}}'


_EVENTS: Mapping[str, Callable[[random.Random, int], str]] = {
    "degrade": lambda rng, nodes: (
        f'degrade: {{link: n{rng.randrange(nodes)}/nic0, to: "5 Gbit/s", at: "1 s", until: "3 s"}}'
    ),
    "bursts": lambda rng, nodes: _draw_stream(rng, nodes, ', nbytes: "1 GB", every: "500 ms"'),
    "stream": _draw_stream,
    "slow": lambda rng, nodes: f"slow: {{nodes: [{rng.randrange(nodes)}], by: 1.2}}",
    "lose": lambda rng, nodes: (
        f'lose: {{nic: n{rng.randrange(nodes)}/nic{rng.randrange(4)}, at: "500 ms", '
        'reroute_after: "10 ms"}'
    ),
}


def main(arguments: list[str]) -> int:
    """Draw, run and print."""
    first, past, seed = [*map(int, arguments), *[0, 130, 8][len(arguments) :]]
    print("| number | CPU | peak memory | |\n|--:|--:|--:|---|")  # noqa: T201
    for number in range(first, past):
        text = draw(number, seed)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "question.yaml"
            path.write_text(text)
            cost = command_cost(HERE.parent.parent.parent, ["run", str(path)])
        asked = "; ".join(text.splitlines()[2:]) if cost is None or cost[0] > LONG_S else ""
        took = (
            "refused or not ended | "
            if cost is None
            else f"{cost[0]:.1f} s | {cost[1] / 2**30:.2f} GiB"
        )
        print(f"| {number} | {took} | {asked} |", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
