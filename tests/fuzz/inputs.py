"""One input: the arguments of a command, and the files that they name."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.fuzz import samples
from tests.fuzz.mutations import VALUES, damage


@dataclass(frozen=True)
class Input:
    """Arguments of `perfmodel`, and files of the working folder by name."""

    arguments: tuple[str, ...]
    files: dict[str, bytes]


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
        (command, "own.yaml", *more, *_format(rng)),
        {"own.yaml": damage(samples.scenario(name), rng)},
    )


def _override(rng: random.Random) -> Input:
    name = rng.choice(samples.SCENARIOS[:5])
    field = rng.choice(_scenario_fields())
    value = rng.choice(VALUES)
    return Input(
        ("run", "own.yaml", "--set", f"{field}={value}", *_format(rng)),
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
        ("collective", "dgx-a100", "--nodes", "2", "--fabric", "own.yaml", "-b", "1 MiB", "-e",
         "1 MiB"),
    )  # fmt: skip
    return Input(rng.choice(commands), {"own.yaml": damage(samples.topology(name), rng)})


def _profile(rng: random.Random) -> Input:
    command = ("collective", "cpu-loopback", "--library", "gloo", "--gpus-per-node", "2",
               "--profile", "own.yaml", "-b", "1 KiB", "-e", "1 MiB", "-f", "32")  # fmt: skip
    return Input((*command, *_format(rng)), {"own.yaml": damage(samples.PROFILE, rng)})


def _model(rng: random.Random) -> Input:
    name, text = rng.choice((("own.yaml", samples.MODEL_YAML), ("own.csv", samples.MODEL_CSV)))
    scenario = samples.scenario("resnet50-dgx-a100").replace("name: resnet18", f"file: {name}")
    commands = (("buckets", name), ("run", "scenario.yaml", *_format(rng)))
    files = {name: damage(text, rng), "scenario.yaml": scenario.encode()}
    return Input(rng.choice(commands), files)


def _log(rng: random.Random) -> Input:
    text = rng.choice((samples.NCCL_TESTS, samples.NCCL_TESTS, samples.MEASUREMENT))
    topology = "dgx-a100" if text is samples.NCCL_TESTS else "cpu-loopback"
    command = ("calibrate", "own.log", "--topology", topology, "-o", "out.yaml")
    return Input((*command, *_format(rng)), {"own.log": damage(text, rng)})


def _import(rng: random.Random) -> Input:
    text = rng.choice((samples.MATRIX, samples.NCCL_XML, samples.NCCL_XML, samples.IBNET))
    more = rng.choice(((), ("--gpu", "A100-SXM4-80GB"), ("-o", "out.yaml")))
    return Input(("topology", "import", "own.txt", *more), {"own.txt": damage(text, rng)})


_FLAGS = {
    "collective": ("--nodes", "--gpus-per-node", "--fabric", "-b", "-e", "-f", "--op", "--env",
                   "--algorithm", "--library", "--protocol", "--nccl-version", "--profile",
                   "--fidelity"),
    "run": ("--set", "--fidelity", "--profile", "-o", "--points", "--images"),
    "tune": ("--set", "--profile", "-o"),
    "buckets": ("--bucket-cap", "--first-bucket", "--caps-list", "--ready-order"),
    "verify": ("--ranks", "--chunks", "--root"),
    "topology": ("--nodes", "--fabric", "-o", "--gpus-per-node"),
    "calibrate": ("--topology", "-o", "--nodes", "--fabric", "--op", "--library", "--name"),
}  # fmt: skip
_SUBJECTS = {
    "collective": ("dgx-a100", "-b", "1 MiB", "-e", "1 MiB"),
    "run": ("own.yaml",),
    "tune": ("own.yaml",),
    "buckets": ("resnet18",),
    "verify": ("ring", "--ranks", "4"),
    "topology": ("show", "dgx-a100"),
    "calibrate": ("own.log", "--topology", "dgx-a100", "-o", "out.yaml"),
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


def _format(rng: random.Random) -> tuple[str, ...]:
    return rng.choice(((), ("--json",)))


MAKERS = (
    _scenario, _override, _topology, _fabric, _profile, _model, _log, _import, _flags,
)  # fmt: skip
