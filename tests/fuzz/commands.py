"""Commands on questions that make sense, and on files of which one value is of another type."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.fuzz import files_read, logs, questions, samples
from tests.fuzz.mutations import damage


@dataclass(frozen=True)
class Input:
    """Arguments of `perfmodel`, and files of the working folder by name."""

    arguments: tuple[str, ...]
    files: dict[str, bytes]


def output_format(rng: random.Random) -> tuple[str, ...]:
    """Text, or one JSON document."""
    return rng.choice(((), ("--json",)))


def question(rng: random.Random) -> Input:
    """A scenario that makes sense, asked by a command that answers it."""
    content = questions.scenario(rng)
    chance = rng.random()
    command = "run" if chance < 0.9 else rng.choice(_SELDOM)
    if "sweep" in content and chance < 0.12:
        command = "sweep"
    if "plan" in content and chance < 0.2:
        command = "plan"
    more = {"compare": ("--set", "seed=1", "-j", "1"), "plan": ("-j", "1"), "sweep": ("-j", "1"),
            "advise": ("-j", "1"), "export": ("-o", "et")}.get(command, ())  # fmt: skip
    words = ("chakra", "own.yaml") if command == "export" else ("own.yaml",)
    form = () if command == "export" else output_format(rng)
    return Input((command, *words, *more, *form), {"own.yaml": questions.written(content)})


_SELDOM = (*["compare"] * 4, *["export"] * 4, *["tune"] * 3, "advise")
"""Commands that simulate many steps."""


def hardware(rng: random.Random) -> Input:
    """A collective, a machine or an algorithm, asked for by words that exist."""
    from perfmodel.collectives.catalog import ALGORITHMS

    node = rng.choice(questions.NODES)
    nodes = 1 if node in questions.ALONE else rng.choice((1, 1, 2))
    fabric = rng.choice(questions.FABRICS[:4])
    machine = (node, "--nodes", str(nodes), *(("--fabric", fabric) if nodes > 1 else ()))
    sizes = ("-b", rng.choice(("1 KiB", "1 MiB")), "-e", "8 MiB", "-f", "8")
    op = rng.choice(sorted(ALGORITHMS))
    named = rng.choice(sorted(ALGORITHMS[op]))
    collective = ("collective", *machine, *sizes)
    flags = (
        (),
        ("--op", rng.choice(("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"))),
        ("--op", rng.choice(("all_to_all", "send_recv", "gather", "scatter"))),
        (
            "--op",
            op,
            "--algorithm",
            named,
            "--library",
            rng.choice(("plain", "nccl", "gloo", "mpi")),
        ),
        (
            "--algorithm",
            rng.choice(("ring", "tree")),
            "--protocol",
            rng.choice(("ll", "ll128", "simple")),
        ),
        ("--nccl-version", rng.choice(("2.18", "2.21.5", "2.27"))),
        (
            "--env",
            rng.choice(
                ("NCCL_ALGO=Ring", "NCCL_PROTO=LL", "NCCL_MIN_NCHANNELS=4", "NCCL_P2P_DISABLE=1")
            ),
        ),
        ("--library", rng.choice(("gloo", "mpi", "plain"))),
        ("--gpus-per-node", rng.choice(("1", "2", "3"))),
    )
    commands = (
        *[(*collective, *each) for each in flags for _ in range(2)],
        ("topology", rng.choice(("show", "check")), *machine),
        (
            "topology",
            "show",
            f"{rng.choice((1, 2, 4, 8))}x {rng.choice(('a100', 'h100 nvl', 'rtx 4090', 'mi300x'))}",
        ),
        ("topology", "list"),
        ("verify", named, "--ranks", rng.choice(("2", "4", "3..6"))),
        ("buckets", rng.choice(("resnet18", "alexnet", "bert-base", "gpt2")), *_bucket_flags(rng)),
        ("models", *rng.choice(((), ("resnet18",), ("bert-base",)))),
        ("schema", rng.choice(("scenario", "topology"))),
        ("scenarios",),
        ("init", "-o", "new.yaml", "--model", "resnet18", "--node", node, "--nodes", str(nodes)),
    )
    words = rng.choice(commands)
    form = () if words[0] in ("topology", "schema", "init") else output_format(rng)
    return Input((*words, *form), {})


def _bucket_flags(rng: random.Random) -> tuple[str, ...]:
    return rng.choice(
        ((), ("--bucket-cap", "5 MiB"), ("--first-iteration",), ("--caps-list", "1 MiB, 5 MiB"))
    )


def other_file(rng: random.Random) -> Input:
    """A file of another kind, one of whose values has another type, or many digits."""
    command, name, content, more = rng.choice(_OTHER_FILES)(rng)
    return Input(command, {name: content, **more})


def _config_file(rng: random.Random) -> tuple[Any, ...]:
    commands = (("models", "config.json"), ("buckets", "config.json"))
    return rng.choice(commands), "config.json", files_read.changed_json(files_read.CONFIG, rng), {}


def _tensor_file(rng: random.Random) -> tuple[Any, ...]:
    if rng.random() < 0.5:
        index = files_read.changed_json(files_read.INDEX, rng)
        whole = {"m.safetensors": files_read.safetensors(files_read.TENSORS)}
        return ("buckets", "own.safetensors.index.json"), "own.safetensors.index.json", index, whole
    changed = files_read.safetensors(files_read.changed_json(files_read.TENSORS, rng))
    return ("buckets", "own.safetensors"), "own.safetensors", changed, {}


def _graph_file(rng: random.Random) -> tuple[Any, ...]:
    content = {
        "perfmodel": 1,
        "model": questions.MODELS[0],
        "compute": {"precision": "bf16"},
        "cluster": {"graph": "own.json"},
        "training": {"batch_per_gpu": 1},
    }
    files = {"own.yaml": questions.written(content)}
    command = rng.choice(
        (("run", "own.yaml"), ("collective", "own.json", "-b", "1 MiB", "-e", "1 MiB"))
    )
    return command, "own.json", files_read.changed_json(files_read.GRAPH, rng), files


def _trace_file(rng: random.Random) -> tuple[Any, ...]:
    more = rng.choice(((), (), ("-o", "out"), ("--topology", "dgx-a100", "-o", "out")))
    content = files_read.changed_json(files_read.trace(), rng)
    return ("trace", "own.json", *more), "own.json", content, {}


def _log_file(rng: random.Random) -> tuple[Any, ...]:
    if rng.random() < 0.5:
        text = rng.choice(files_read.LOGS["import"])
        change = (
            files_read.other_attribute
            if text.startswith("<") and rng.random() < 0.7
            else files_read.other_number
        )
        return ("topology", "import", "own.txt"), "own.txt", change(text, rng).encode(), {}
    command = ("calibrate", "own.log", "--topology", "dgx-a100", "-o", "out.yaml")
    if rng.random() < 0.5:
        return (
            command,
            "own.log",
            files_read.changed_json(rng.choice(files_read.JSON_LOGS), rng),
            {},
        )
    text = rng.choice(files_read.LOGS["calibrate"])
    if rng.random() < 0.5:
        command = ("diagnose", "own.log", "--topology", "dgx-a100")
    return command, "own.log", files_read.other_number(text, rng).encode(), {}


def _record_file(rng: random.Random) -> tuple[Any, ...]:
    files = {
        "own/META.csv": files_read.META,
        "own/one.csv": files_read.TIMES,
        "own/two.csv": files_read.TIMES,
    }
    if rng.random() < 0.4:
        scenario = questions.written(questions.scenario(random.Random(0))).decode()
        files = {"own/steps.csv": files_read.STEPS, "own/own.yaml": scenario}
    name = rng.choice([each for each in files if each.endswith(".csv")])
    files[name] = (
        files_read.other_number(files[name], rng)
        if rng.random() < 0.5
        else damage(files[name], rng).decode("utf-8", "replace")
    )
    contents = {each: text.encode() for each, text in files.items()}
    return ("validate", "--data", "own", "--no-transfer"), name, contents.pop(name), contents


def _argument_file(rng: random.Random) -> tuple[Any, ...]:
    text = files_read.other_number(files_read.MEGATRON, rng)
    content = {
        "perfmodel": 1,
        "model": {"megatron": rng.choice((text, "own.sh"))},
        "compute": {"precision": "bf16"},
        "cluster": {"node": "rtx4090-x2-10g"},
        "training": {"batch_per_gpu": 1},
    }
    return ("run", "own.yaml"), "own.yaml", questions.written(content), {"own.sh": text.encode()}


def _yaml_file(rng: random.Random) -> tuple[Any, ...]:
    """YAML of each kind, with a value of another type in one place."""
    from perfmodel.files import plain
    from perfmodel.files.read import parse_yaml

    check, sizes = ("topology", "check", "own.yaml"), ("-b", "1 KiB", "-e", "1 MiB", "-f", "32")
    ranks = ("cpu-loopback", "--library", "gloo", "--gpus-per-node", "2")
    text, command = rng.choice(
        (
            (samples.topology(rng.choice(samples.NODES)), check),
            (samples.topology(f"fabrics/{rng.choice(samples.FABRICS)}"), check),
            (logs.GPUS_YAML, check),
            (samples.MODEL_YAML, ("buckets", "own.yaml")),
            (samples.PROFILE, ("collective", *ranks, "--profile", "own.yaml", *sizes)),
        )
    )
    return command, "own.yaml", files_read.changed_json(plain(parse_yaml(text)), rng), {}


def _scenario_file(rng: random.Random) -> tuple[Any, ...]:
    content = files_read.other_type(questions.scenario(rng), rng)
    command = rng.choice(("run", "run", "tune", "advise", "export"))
    words = (
        ("export", "chakra", "own.yaml", "-o", "et")
        if command == "export"
        else (command, "own.yaml", *(("-j", "1") if command == "advise" else ()))
    )
    return words, "own.yaml", questions.written(content), {}


_OTHER_FILES = (
    _config_file,
    _tensor_file,
    _graph_file,
    _trace_file,
    _log_file,
    _log_file,
    _record_file,
    _argument_file,
    _yaml_file,
    _scenario_file,
)
