"""Time whole commands in which much happens at once, and how their cost grows.

    python reports/benchmarks/crowded/run.py [--root DIR] [CASE ...]

Prints a Markdown table: CPU seconds of a process of its own, imports included, and its peak
memory. `--root` runs the perfmodel of another checkout, to compare with; without names all cases
are run, about ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from benchmarks.growth import fitted  # noqa: E402  (found by the line above)

LIMIT_S = 900
RESNET = """\
model: {name: resnet50}
compute: {precision: fp16, channels_last: true, optimizer: sgd-momentum}
training: {batch_per_gpu: 64}
"""
BERT = """\
model: {name: bert-large, sequence_length: 128}
compute: {precision: bf16, optimizer: adamw}
training: {batch_per_gpu: 32}
"""
JITTER = "  - jitter: {kind: normal, cv: 0.03, per: step}\n"
V100 = "node: v100-x8-100g"


def _streams(count: int, rest: str, node: str = V100, fabric: str = "leaf-spine") -> str:
    traffic = f"traffic: {{from: 'n[0-{count - 1}]/cpu0', to: n{count}/cpu0, {rest}}}"
    return (
        f"{RESNET}cluster: {{{node}, nodes: {count}, pool: {count + 1}, fabric: {fabric}}}\n"
        f"scale: {{nodes: [{count}]}}\nevents:\n  - {traffic}\n"
    )


def _jitter(nodes: int, event: str) -> str:
    return (
        f"{RESNET}cluster: {{{V100}, nodes: {nodes}, pool: {nodes + 1}, fabric: leaf-spine}}\n"
        f"scale: {{nodes: [{nodes}]}}\nevents:\n{JITTER}  - {event}\n"
    )


def _jobs(nodes: int, jobs: list[str], hosts_per_leaf: int, gpus: int = 8) -> str:
    fabric = f"{{kind: leaf-spine, hosts_per_leaf: {hosts_per_leaf}, oversubscription: 4}}"
    others = "".join(f"  - {{{job}, nodes: {nodes}, placement: spread}}\n" for job in jobs)
    pool = nodes * (1 + len(jobs))
    return (
        f"{RESNET}cluster: {{{V100}, nodes: {nodes}, gpus_per_node: {gpus}, pool: {pool}, "
        f"fabric: {fabric}, placement: spread}}\nscale: {{nodes: [{nodes}]}}\njobs:\n{others}"
    )


def _transformers(nodes: int, own: str, jobs: list[str]) -> str:
    fabric = "{kind: leaf-spine, hosts_per_leaf: 8, oversubscription: 4}"
    others = "".join(f"  - {{{job}, nodes: {nodes}, placement: spread}}\n" for job in jobs)
    pool = nodes * (1 + len(jobs))
    return (
        f"{own}cluster: {{node: dgx-a100, nodes: {nodes}, pool: {pool}, fabric: {fabric}, "
        f"placement: spread}}\nscale: {{nodes: [{nodes}]}}\njobs:\n{others}"
    )


def _large(nodes: int, fabric: str, events: str = "") -> str:
    return (
        f"{BERT}cluster: {{node: dgx-a100, nodes: {nodes}, fabric: {fabric}}}\n"
        f"scale: {{nodes: [{nodes}]}}\n{events}"
    )


BURSTS = "traffic: {from: 'n[0-3]/cpu0', to: n4/cpu0, nbytes: '100 MB', every: '200 ms'}"
CHANGE = (
    "degrade: {link: 'n3/nic0 -- fabric/leaf0', to: '40 Gbit/s', at: '200 ms', until: '400 ms'}"
)
SLOW = "events:\n  - slow: {ranks: [17], by: 1.2}\n"
OTHERS = [
    "name: a, model: vgg16, batch_per_gpu: 32",
    "name: b, model: bert-large, batch_per_gpu: 16",
    "name: c, model: resnet50, batch_per_gpu: 128",
    "name: d, model: vgg16, batch_per_gpu: 16",
]
TEXTS = [
    "name: a, model: bert-large, batch_per_gpu: 16",
    "name: b, model: gpt2, batch_per_gpu: 8",
    "name: c, model: bert-base, batch_per_gpu: 32",
    "name: d, model: gpt2-medium, batch_per_gpu: 4",
]
LLAMA = """\
model: {name: llama2-7b}
compute: {precision: bf16, optimizer: adamw}
training: {batch_per_gpu: 1}
"""
PIPELINE = LLAMA + "parallel: {tensor: 4, pipeline: 4}\n"
MESSAGE = ("--fidelity", "message")
SHARDED = """\
model: {name: llama2-70b, sequence_length: 4096}
compute: {precision: bf16, optimizer: adamw}
cluster: {node: dgx-h100, nodes: 128, fabric: rail-optimised}
scale: {nodes: [128]}
training: {batch_per_gpu: 1}
"""
ZERO = """\
model: {name: llama2-7b, sequence_length: 2048}
compute: {precision: bf16, optimizer: adamw}
cluster: {node: dgx-a100, nodes: 1000, fabric: rail-optimised}
scale: {nodes: [1000]}
training: {batch_per_gpu: 1}
"""
STEP = f"""{RESNET}cluster: {{node: dgx-a100, nodes: 15, fabric: rail-optimised}}
scale: {{nodes: [15]}}
"""
SCENARIOS: Mapping[str, tuple[str, tuple[str, ...]] | tuple[str, tuple[str, ...], str]] = {
    "jitter-traffic-64": (_jitter(8, BURSTS), ()),
    "jitter-link-128": (_jitter(16, CHANGE), ()),
    "endless-streams-64": (_streams(64, "rate: 0.1 GB/s", "node: dgx-a100", "rail-optimised"), ()),
    "streams-256": (_streams(256, "nbytes: 1 GB, every: 2 s"), ()),
    "message-step-120": (STEP, MESSAGE),
    "two-jobs-512": (_jobs(256, OTHERS[:1], 16, gpus=1), ()),
    "five-jobs-320": (_jobs(8, OTHERS, 8), ()),
    "five-transformers-320": (_transformers(8, BERT, TEXTS), ()),
    "five-transformers-80": (_transformers(2, BERT, TEXTS), ()),
    "fsdp-beside-four-320": (_transformers(8, LLAMA, TEXTS), (), "fsdp"),
    "pipeline-beside-two-192": (_transformers(8, PIPELINE, TEXTS[:2]), (), "ddp, accumulate: 8"),
    "accumulating-beside-two-192": (_transformers(8, BERT, TEXTS[:2]), (), "ddp, accumulate: 4"),
    "two-jobs-8192": (_transformers(512, BERT, TEXTS[1:2]), ()),
    "straggler-16384": (_large(2048, "rail-optimised", SLOW), ()),
    "straggler-32768": (_large(4096, "rail-optimised", SLOW), ()),
    "leaf-spine-100000": (_large(12_500, "leaf-spine"), ()),
    "fat-tree-65536": (_large(8_192, "fat-tree"), ()),
    "fsdp-70b-1024": (SHARDED, ("--set", "strategy={kind: fsdp}")),
    "hsdp-8-70b-1024": (SHARDED, ("--set", "strategy={kind: fsdp, shard_gpus: 8}")),
    "hsdp-64-70b-1024": (SHARDED, ("--set", "strategy={kind: fsdp, shard_gpus: 64}")),
    "zero-1-70b-1024": (SHARDED, ("--set", "strategy={kind: zero, stage: 1}")),
    "zero-2-70b-1024": (SHARDED, ("--set", "strategy={kind: zero, stage: 2}")),
    "zero-3-70b-1024": (SHARDED, ("--set", "strategy={kind: zero, stage: 3}")),
    "zero-2-7b-8000": (ZERO, ("--set", "strategy={kind: zero, stage: 2}")),
}
COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    "all-to-all-1024": (
        "dgx-h100",
        "--nodes",
        "128",
        "--fabric",
        "rail-optimised",
        "--op",
        "all_to_all",
        "-b",
        "1MiB",
        "-e",
        "64MiB",
        "-f",
        "8",
    ),
    "halving-4096": (
        "dgx-a100",
        "--nodes",
        "512",
        "--fabric",
        "fat-tree",
        "--op",
        "reduce_scatter",
        "--algorithm",
        "recursive_halving",
        "-b",
        "64MiB",
        "-e",
        "64MiB",
    ),
    "message-ring-512": (
        "v100-x8-100g",
        "--nodes",
        "512",
        "--gpus-per-node",
        "1",
        "--fabric",
        "one-switch",
        "--algorithm",
        "ring",
        "-b",
        "64MiB",
        "-e",
        "64MiB",
        *MESSAGE,
    ),
    "message-ring-512-64": (
        "dgx-a100",
        "--nodes",
        "64",
        "--fabric",
        "rail-optimised",
        "--algorithm",
        "ring",
        "-b",
        "64MiB",
        "-e",
        "64MiB",
        *MESSAGE,
    ),
    "message-ring-256": (
        "dgx-a100",
        "--nodes",
        "32",
        "--fabric",
        "rail-optimised",
        "--algorithm",
        "ring",
        "-b",
        "64MiB",
        "-e",
        "64MiB",
        *MESSAGE,
    ),
}
GROWTHS: Mapping[str, Mapping[int, str]] = {
    "ranks with jitter beside traffic": {8 * n: _jitter(n, BURSTS) for n in (8, 16, 32, 64)},
    "streams to one host (and nodes of the job)": {
        n: _streams(n, "nbytes: 1 GB, every: 2 s") for n in (16, 32, 64, 128)
    },
    "endless streams to one host (and nodes of the job)": {
        n: _streams(n, "rate: 0.05 GB/s") for n in (16, 32, 64, 128)
    },
    "nodes of two jobs": {n: _jobs(n // 2, OTHERS[:1], 8, gpus=1) for n in (16, 32, 64, 128)},
}


def main(arguments: list[str]) -> int:
    """Run cases and print what they took."""
    root = HERE.parent.parent.parent
    if arguments[:1] == ["--root"]:
        root, arguments = Path(arguments[1]).resolve(), arguments[2:]
    print("| case | CPU | peak memory |\n|---|--:|--:|")  # noqa: T201
    for name in arguments or [*SCENARIOS, *COLLECTIVES]:
        cost = _cost(root, name)
        text = "failed | " if cost is None else f"{cost[0]:.1f} s | {cost[1] / 2**30:.2f} GiB"
        print(f"| {name} | {text} |", flush=True)  # noqa: T201
    for line in [] if arguments else _growths(root):
        print(line, flush=True)  # noqa: T201
    return 0


def _cost(root: Path, name: str) -> tuple[float, float] | None:
    if name in COLLECTIVES:
        return command_cost(root, ["collective", *COLLECTIVES[name]])
    return _scenario(root, *SCENARIOS[name])


def _growths(root: Path) -> Iterator[str]:
    yield "\n| with | exponent of the CPU time beyond a small run |\n|---|--:|"
    start_s = (_scenario(root, f"{RESNET}cluster: {{{V100}, nodes: 1}}\n", ()) or (0.0, 0.0))[0]
    for what, texts in GROWTHS.items():
        costs = [_scenario(root, text, ()) for text in texts.values()]
        if None in costs:
            yield f"| {what} | failed |"
            continue
        took = [cost[0] - start_s for cost in costs if cost]
        yield f"| {what}, {min(texts)} to {max(texts)} | {fitted(list(texts), took)} |"


def _scenario(
    root: Path, text: str, flags: tuple[str, ...], kind: str = "ddp"
) -> tuple[float, float] | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "question.yaml"
        head = f"# What does a crowd cost?\nperfmodel: 1\nstrategy: {{kind: {kind}}}\n"
        path.write_text(head + text)
        return command_cost(root, ["run", str(path), *flags])


def command_cost(root: Path, arguments: list[str]) -> tuple[float, float] | None:
    """CPU seconds and peak bytes of one command; None if it fails or takes too long."""
    code = "from perfmodel.cli import main; main()"
    process = subprocess.Popen(  # noqa: S603  (our own command)
        [sys.executable, "-P", "-c", code, *arguments, "--json"],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_limit_cpu,  # noqa: PLW1509  (no threads here)
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        return None
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0


def _limit_cpu() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
