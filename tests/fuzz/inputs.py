"""One input: the arguments of a command, and the files that they name, whole or damaged."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from reports.robustness.damage import KINDS, NAME, make_store
from tests.fuzz import commands, logs, samples
from tests.fuzz.commands import Input, output_format
from tests.fuzz.mutations import CHARACTERS, VALUES, damage

LOGS = (logs.P2P, logs.NVBANDWIDTH, logs.NVBANDWIDTH_JSON, logs.NCCL_JSON, logs.RCCL_JSON)


def make_input(seed: int, number: int) -> Input:
    """Make the input with a number; the same for each run of a seed."""
    rng = random.Random(f"{seed} {number}")
    return rng.choice(MAKERS)(rng)


def _scenario(rng: random.Random) -> Input:
    name = rng.choice(samples.SCENARIOS)
    commands = {
        "plan-gpt2-xl": ("plan", "run"),
        "sweep-buckets-and-nodes": ("run",),  # a sweep starts processes
    }.get(name, (*["run"] * 28, "tune", "compare"))
    command = rng.choice(commands)
    more = {"compare": ("--set", "seed=1", "-j", "1"), "plan": ("-j", "1")}.get(command, ())
    return Input(
        (command, "own.yaml", *more, *output_format(rng)),
        {"own.yaml": damage(samples.scenario(name), rng)},
    )


def _override(rng: random.Random) -> Input:
    name = rng.choice(samples.SCENARIOS[:5])
    field = rng.choice(_scenario_fields())
    value = rng.choice(VALUES)
    return Input(
        ("run", "own.yaml", "--set", f"{field}={value}", *output_format(rng)),
        {"own.yaml": samples.scenario(name).encode()},
    )


@cache
def _scenario_fields() -> tuple[str, ...]:
    """Dotted fields of the schema of scenarios."""
    from perfmodel.scenario.model import Scenario

    schema = Scenario.model_json_schema()
    fields: list[str] = []

    def walk(part: dict[str, Any], prefix: str, depth: int) -> None:
        if depth > 6:
            return
        for option in (part, *part.get("anyOf", ()), *part.get("oneOf", ())):
            target = option
            if "$ref" in option:
                target = schema["$defs"][option["$ref"].rpartition("/")[2]]
            for name, inner in target.get("properties", {}).items():
                fields.append(f"{prefix}{name}")
                walk(inner, f"{prefix}{name}.", depth + 1)

    walk(schema, "", 0)
    return tuple(dict.fromkeys(fields))


def _topology(rng: random.Random) -> Input:
    name = rng.choice(samples.NODES)
    nodes = rng.choice(("1", "2"))
    fabric = () if nodes == "1" else ("--fabric", "one-switch")
    commands = (
        ("topology", "check", "own.yaml"),
        ("topology", "show", "own.yaml", "--nodes", nodes, *fabric),
        ("collective", "own.yaml", "-b", "1 MiB", "-e", "2 MiB", "--nodes", nodes, *fabric),
    )
    return Input(rng.choice(commands), {"own.yaml": damage(samples.topology(name), rng)})


def _fabric(rng: random.Random) -> Input:
    name = f"fabrics/{rng.choice(samples.FABRICS)}"
    commands = (
        ("topology", "check", "own.yaml"),
        (
            "collective",
            "dgx-a100",
            "--nodes",
            "2",
            "--fabric",
            "own.yaml",
            "-b",
            "1 MiB",
            "-e",
            "1 MiB",
        ),
    )
    return Input(rng.choice(commands), {"own.yaml": damage(samples.topology(name), rng)})


def _profile(rng: random.Random) -> Input:
    command = (
        "collective",
        "cpu-loopback",
        "--library",
        "gloo",
        "--gpus-per-node",
        "2",
        "--profile",
        "own.yaml",
        "-b",
        "1 KiB",
        "-e",
        "1 MiB",
        "-f",
        "32",
    )
    return Input((*command, *output_format(rng)), {"own.yaml": damage(samples.PROFILE, rng)})


def _model(rng: random.Random) -> Input:
    name, text = rng.choice((("own.yaml", samples.MODEL_YAML), ("own.csv", samples.MODEL_CSV)))
    scenario = samples.scenario("resnet50-dgx-a100").replace("name: resnet18", f"file: {name}")
    commands = (("buckets", name), ("run", "scenario.yaml", *output_format(rng)))
    files = {name: damage(text, rng), "scenario.yaml": scenario.encode()}
    return Input(rng.choice(commands), files)


def _log(rng: random.Random) -> Input:
    text = rng.choice((samples.NCCL_TESTS, samples.NCCL_TESTS, samples.MEASUREMENT, *LOGS))
    topology = "cpu-loopback" if text is samples.MEASUREMENT else "dgx-a100"
    command: tuple[str, ...] = ("calibrate", "own.log", "--topology", topology, "-o", "out.yaml")
    if rng.random() < 0.3:
        command = ("diagnose", "own.log", "--topology", topology)
    return Input((*command, *output_format(rng)), {"own.log": damage(text, rng)})


def _import(rng: random.Random) -> Input:
    texts = (
        samples.MATRIX,
        samples.NCCL_XML,
        samples.NCCL_XML,
        samples.IBNET,
        logs.P2P_STATUS,
    )
    text = rng.choice(texts)
    more = rng.choice(((), ("--gpu", "A100-SXM4-80GB"), ("-o", "out.yaml")))
    return Input(("topology", "import", "own.txt", *more), {"own.txt": damage(text, rng)})


_FLAGS = {
    "collective": (
        "--nodes",
        "--gpus-per-node",
        "--fabric",
        "-b",
        "-e",
        "-f",
        "--op",
        "--env",
        "--algorithm",
        "--library",
        "--protocol",
        "--nccl-version",
        "--profile",
        "--fidelity",
    ),
    "run": ("--set", "--fidelity", "--profile", "-o", "--points", "--images"),
    "tune": ("--set", "--profile", "-o"),
    "buckets": ("--bucket-cap", "--first-bucket", "--caps-list", "--ready-order"),
    "verify": ("--ranks", "--chunks", "--root"),
    "topology": ("--nodes", "--fabric", "-o", "--gpus-per-node"),
    "calibrate": ("--topology", "-o", "--nodes", "--fabric", "--op", "--library", "--name"),
    "diagnose": ("--topology", "--nodes", "--gpus-per-node", "--fabric", "--op", "--env"),
}
_SUBJECTS = {
    "collective": ("dgx-a100", "-b", "1 MiB", "-e", "1 MiB"),
    "run": ("own.yaml",),
    "tune": ("own.yaml",),
    "buckets": ("resnet18",),
    "verify": ("ring", "--ranks", "4"),
    "topology": ("show", "dgx-a100"),
    "calibrate": ("own.log", "--topology", "dgx-a100", "-o", "out.yaml"),
    "diagnose": ("own.log", "--topology", "dgx-a100"),
}


def _flags(rng: random.Random) -> Input:
    command = rng.choice((*list(_FLAGS), "collective", "buckets", "topology", "verify"))
    flags = [
        word
        for _ in range(rng.choice((1, 1, 2)))
        for word in (rng.choice(_FLAGS[command]), rng.choice(VALUES).strip("'\""))
    ]
    subject = [rng.choice(VALUES)] if rng.random() < 0.15 else list(_SUBJECTS[command])
    files = {
        "own.yaml": samples.scenario("resnet50-dgx-a100").encode(),
        "own.log": samples.NCCL_TESTS.encode(),
    }
    return Input((command, *subject, *flags), files)


def _times(rng: random.Random) -> Input:
    scenario = samples.scenario("resnet50-dgx-a100").replace("name: resnet18", "file: model.csv")
    scenario = scenario.replace("channels_last: true", "source: file, times: own.csv")
    files = {
        "own.csv": damage(logs.TIMES_CSV, rng),
        "model.csv": samples.MODEL_CSV.encode(),
        "scenario.yaml": scenario.encode(),
    }
    return Input(("run", "scenario.yaml", *output_format(rng)), files)


def _gpus(rng: random.Random) -> Input:
    node = samples.topology("dgx-a100").replace("gpu: a100-sxm4-80gb", "gpu: my-gpu")
    files = {"topologies/gpus.yaml": damage(logs.GPUS_YAML, rng), "node.yaml": node.encode()}
    subject = rng.choice(("node.yaml", "topologies/gpus.yaml"))
    commands = (
        ("collective", "node.yaml", "-b", "1 MiB", "-e", "1 MiB", "--gpus-per-node", "2"),
        ("topology", "check", subject),
        ("topology", "show", "node.yaml"),
    )
    return Input(rng.choice(commands), files)


def _written(rng: random.Random) -> Input:
    """Everything that is written to a folder, from texts that are damaged."""
    name, command, more = rng.choice(
        (
            ("resnet50-dgx-a100", "run", ()),
            ("degraded-link", "run", ()),
            ("plan-gpt2-xl", "plan", ("-j", "1")),
            ("resnet50-dgx-a100", "tune", ()),
            ("resnet50-dgx-a100", "compare", ("--set", "seed=1", "-j", "1")),
        )
    )
    text = samples.scenario(name)
    marks = "".join(rng.choices((*CHARACTERS, "=", "+", "-", "@", "<b>", "|", "[/x]"), k=4))
    text = f"# {''.join(marks.splitlines())} how long?\n{text.partition(chr(10))[2]}"
    return Input((command, "own.yaml", *more, "-o", "out"), {"own.yaml": damage(text, rng)})


def _sweep(rng: random.Random) -> Input:
    text = samples.scenario("sweep-buckets-and-nodes")
    words = ("sweep", "own.yaml", "-j", "1")
    if rng.random() < 0.5:
        return Input(
            (*words, "--csv", "out.csv", *output_format(rng)), {"own.yaml": damage(text, rng)}
        )
    store = _damaged_store(rng)
    return Input((*words, "--store", "own.sqlite"), {"own.yaml": text.encode()} | store)


def _damaged_store(rng: random.Random) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_store(folder)
        rng.choice(KINDS)(folder, rng)
        return {
            path.name.replace(NAME, "own.sqlite"): path.read_bytes()
            for path in sorted(folder.iterdir())
            if not path.name.endswith("-shm")
        }


MAKERS = (
    _scenario,
    _scenario,
    _override,
    _override,
    _topology,
    _topology,
    _fabric,
    _profile,
    _model,
    _log,
    _log,
    _import,
    _flags,
    _flags,
    _times,
    _gpus,
    _written,
    _sweep,
    *[commands.question] * 60,
    *[commands.hardware] * 35,
    *[commands.other_file] * 17,
)
