"""Record what the commands answer for all shipped scenarios and machines.

``python -m reports.answers.record DIR`` asks the perfmodel that is imported; with another checkout
on ``PYTHONPATH`` it asks that one. ``python -m reports.answers.compare BEFORE AFTER`` compares.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = "import sys; from perfmodel.cli import main; sys.argv[0] = 'perfmodel'; main()"

CLUSTERS = (
    ("--nodes", "1"),
    ("--nodes", "2", "--fabric", "rail-optimised"),
    ("--nodes", "4", "--fabric", "leaf-spine"),
)

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")

ALGORITHMS = (
    "ring",
    "tree",
    "nvls",
    "nvls_tree",
    "collnet",
    "halving_doubling",
    "hierarchical",
    "torus",
    "bidirectional_ring",
    "recursive_doubling",
    "parameter_server",
    "chain",
)


def names(folder: str) -> list[str]:
    """Stems of the YAML files of a folder of this repository."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.yaml") if path.stem != "gpus")


def studies() -> Iterator[tuple[str, ...]]:
    """Commands about scenarios."""
    for name in names("scenarios"):
        yield "run", name, "-o", "{out}"
        yield "run", name, "--json"
        yield "tune", name, "--json"
        yield "compare", name, "--set", "what_if.network_bandwidth=2", "--attribute", "--json"
    yield (
        "run",
        "resnet50-dgx-a100",
        "--fidelity",
        "message",
        "--set",
        "scale={nodes: [1]}",
        "--json",
    )
    yield "run", "resnet50-dgx-a100", "--set", "strategy.accumulate=2", "--json"
    yield "run", "bert-large-v100-25g", "--explore", "-o", "{out}"
    yield "tune", "resnet50-dgx-a100", "--all-sizes", "--horovod", "--json"
    yield "tune", "bert-large-v100-25g", "bert-large-v100-100g", "-o", "{out}"
    yield "compare", "bert-large-v100-25g", "bert-large-v100-100g", "-o", "{out}"
    yield "plan", "plan-gpt2-xl", "--json"
    yield "plan", "plan-gpt2-xl", "-o", "{out}"
    yield "sweep", "sweep-buckets-and-nodes", "--json"
    yield "validate", "--json"
    yield "validate", "-o", "{out}"
    recorded = "reports/measured/gloo_ring_4_epyc.json"
    yield "calibrate", recorded, "--topology", "cpu-loopback", "-o", "{out}/p.yaml"


def machines() -> Iterator[tuple[str, ...]]:
    """Commands about machines and collectives."""
    for name in names("topologies"):
        yield "topology", "show", name
        for cluster in CLUSTERS:
            yield "collective", name, *cluster, "--json"
        for library in ("gloo", "mpi", "plain"):
            yield "collective", name, *CLUSTERS[1], "--library", library, "--json"
    for operation in OPERATIONS:
        for name in ("dgx-a100", "dgx-h100", "v100-x8-25g"):
            for cluster in CLUSTERS:
                yield "collective", name, *cluster, "--op", operation, "--json"
    for algorithm in ALGORITHMS:
        for library in ("nccl", "plain"):
            words = ("--algorithm", algorithm, "--library", library)
            yield "collective", "dgx-h100", *CLUSTERS[1], *words, "--json"
    few = ("-b", "1MiB", "-e", "16MiB", "--fidelity", "message")
    yield "collective", "dgx-a100", *CLUSTERS[1], *few, "--json"
    profile = ("--profile", "epyc-2-cores-gloo")
    yield "collective", "cpu-loopback", "--library", "gloo", *few, *profile, "--json"


def lists() -> Iterator[tuple[str, ...]]:
    """Commands that list, check or explain."""
    for command in ("models", "scenarios", "topology list"):
        yield *command.split(), "--json"
    for kind in ("scenario", "topology"):
        yield "schema", kind
    for model in ("resnet50", "bert-large", "gpt2", "llama2-7b", "vgg16", "vit-b-16"):
        yield "buckets", model, "--json"
    for algorithm in ("ring", "tree", "nvls", "pat"):
        yield "verify", algorithm, "--ranks", "2..5", "--json"


def record(command: tuple[str, ...], folder: Path) -> None:
    """Write what a command prints, its exit code and its files."""
    stem = "_".join(command).replace("/", "-").replace("{out}", "out").replace(" ", "")
    out = folder / "files" / stem
    words = [word.replace("{out}", str(out)) for word in command]
    if words != list(command):
        out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-P", "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
    )
    text = done.stdout.replace(str(out), "OUT")
    (folder / f"{stem}.txt").write_text(text, encoding="utf-8")
    errors = done.stderr.replace(str(out), "OUT")
    (folder / f"{stem}.err").write_text(f"{done.returncode}\n{errors}", encoding="utf-8")


def main() -> None:
    """Ask everything, two commands at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="commands that contain this")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    commands = [c for c in (*lists(), *machines(), *studies()) if given.only in " ".join(c)]
    with ThreadPoolExecutor(given.jobs) as pool:
        for _ in pool.map(lambda command: record(command, given.folder.resolve()), commands):
            pass


if __name__ == "__main__":
    main()
