"""One input: the arguments of a command, and the files that they name."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reports.robustness.damage import KINDS, NAME, make_store
from tests.fuzz import files_read, logs, questions, samples
from tests.fuzz.mutations import CHARACTERS, VALUES, damage

LOGS = (logs.P2P, logs.NVBANDWIDTH, logs.NVBANDWIDTH_JSON, logs.NCCL_JSON, logs.RCCL_JSON)


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
    return Input((*command, *_format(rng)), {"own.yaml": damage(samples.PROFILE, rng)})


def _model(rng: random.Random) -> Input:
    name, text = rng.choice((("own.yaml", samples.MODEL_YAML), ("own.csv", samples.MODEL_CSV)))
    scenario = samples.scenario("resnet50-dgx-a100").replace("name: resnet18", f"file: {name}")
    commands = (("buckets", name), ("run", "scenario.yaml", *_format(rng)))
    files = {name: damage(text, rng), "scenario.yaml": scenario.encode()}
    return Input(rng.choice(commands), files)


def _log(rng: random.Random) -> Input:
    text = rng.choice((samples.NCCL_TESTS, samples.NCCL_TESTS, samples.MEASUREMENT, *LOGS))
    topology = "cpu-loopback" if text is samples.MEASUREMENT else "dgx-a100"
    command = ("calibrate", "own.log", "--topology", topology, "-o", "out.yaml")
    return Input((*command, *_format(rng)), {"own.log": damage(text, rng)})


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
}
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


def _times(rng: random.Random) -> Input:
    scenario = samples.scenario("resnet50-dgx-a100").replace("name: resnet18", "file: model.csv")
    scenario = scenario.replace("channels_last: true", "source: file, times: own.csv")
    files = {
        "own.csv": damage(logs.TIMES_CSV, rng),
        "model.csv": samples.MODEL_CSV.encode(),
        "scenario.yaml": scenario.encode(),
    }
    return Input(("run", "scenario.yaml", *_format(rng)), files)


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
        return Input((*words, "--csv", "out.csv", *_format(rng)), {"own.yaml": damage(text, rng)})
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


def _question(rng: random.Random) -> Input:
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
    form = () if command == "export" else _format(rng)
    return Input((command, *words, *more, *form), {"own.yaml": questions.written(content)})


_SELDOM = (*["compare"] * 4, *["export"] * 4, *["tune"] * 3, "advise")
"""Commands that simulate many steps."""


def _hardware(rng: random.Random) -> Input:
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
        ("--op", op, "--algorithm", named, "--library", rng.choice(("plain", "nccl", "gloo", "mpi"))),
        ("--algorithm", rng.choice(("ring", "tree")), "--protocol", rng.choice(("ll", "ll128", "simple"))),
        ("--nccl-version", rng.choice(("2.18", "2.21.5", "2.27"))),
        ("--env", rng.choice(("NCCL_ALGO=Ring", "NCCL_PROTO=LL", "NCCL_MIN_NCHANNELS=4", "NCCL_P2P_DISABLE=1"))),
        ("--library", rng.choice(("gloo", "mpi", "plain"))),
        ("--gpus-per-node", rng.choice(("1", "2", "3"))),
    )
    commands = (
        *[(*collective, *each) for each in flags for _ in range(2)],
        ("topology", rng.choice(("show", "check")), *machine),
        ("topology", "show", f"{rng.choice((1, 2, 4, 8))}x {rng.choice(('a100', 'h100 nvl', 'rtx 4090', 'mi300x'))}"),
        ("topology", "list"),
        ("verify", named, "--ranks", rng.choice(("2", "4", "3..6"))),
        ("buckets", rng.choice(("resnet18", "alexnet", "bert-base", "gpt2")), *_bucket_flags(rng)),
        ("models", *rng.choice(((), ("resnet18",), ("bert-base",)))),
        ("schema", rng.choice(("scenario", "topology"))),
        ("scenarios",),
        ("init", "-o", "new.yaml", "--model", "resnet18", "--node", node, "--nodes", str(nodes)),
    )
    words = rng.choice(commands)
    form = () if words[0] in ("topology", "schema", "init") else _format(rng)
    return Input((*words, *form), {})


def _bucket_flags(rng: random.Random) -> tuple[str, ...]:
    return rng.choice(((), ("--bucket-cap", "5 MiB"), ("--first-iteration",), ("--caps-list", "1 MiB, 5 MiB")))


def _other_file(rng: random.Random) -> Input:
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
    command = rng.choice((("run", "own.yaml"), ("collective", "own.json", "-b", "1 MiB", "-e", "1 MiB")))
    return command, "own.json", files_read.changed_json(files_read.GRAPH, rng), files


def _trace_file(rng: random.Random) -> tuple[Any, ...]:
    kinds = (files_read.trace, files_read.execution_trace, lambda: files_read.INSPECTOR)
    more = rng.choice(((), (), ("-o", "out"), ("--topology", "dgx-a100", "-o", "out")))
    content = files_read.changed_json(rng.choice(kinds)(), rng)
    content = content if b"coll_perf" not in content else b" ".join(content.split())
    return ("trace", "own.json", *more), "own.json", content, {}


def _log_file(rng: random.Random) -> tuple[Any, ...]:
    if rng.random() < 0.5:
        text = rng.choice(files_read.LOGS["import"])
        change = files_read.other_attribute if text.startswith("<") and rng.random() < 0.7 else files_read.other_number
        return ("topology", "import", "own.txt"), "own.txt", change(text, rng).encode(), {}
    command = ("calibrate", "own.log", "--topology", "dgx-a100", "-o", "out.yaml")
    if rng.random() < 0.5:
        return command, "own.log", files_read.changed_json(rng.choice(files_read.JSON_LOGS), rng), {}
    text = rng.choice(files_read.LOGS["calibrate"])
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
    files[name] = files_read.other_number(files[name], rng) if rng.random() < 0.5 else damage(files[name], rng).decode("utf-8", "replace")
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

    text, command = rng.choice(
        (
            (samples.topology(rng.choice(samples.NODES)), ("topology", "check", "own.yaml")),
            (samples.topology(f"fabrics/{rng.choice(samples.FABRICS)}"), ("topology", "check", "own.yaml")),
            (samples.MODEL_YAML, ("buckets", "own.yaml")),
            (samples.PROFILE, ("collective", "cpu-loopback", "--library", "gloo", "--gpus-per-node", "2", "--profile", "own.yaml", "-b", "1 KiB", "-e", "1 MiB", "-f", "32")),
            (logs.GPUS_YAML, ("topology", "check", "own.yaml")),
        )
    )  # fmt: skip
    return command, "own.yaml", files_read.changed_json(plain(parse_yaml(text)), rng), {}


def _scenario_file(rng: random.Random) -> tuple[Any, ...]:
    content = files_read.other_type(questions.scenario(rng), rng)
    command = rng.choice(("run", "run", "tune", "advise", "export"))
    words = ("export", "chakra", "own.yaml", "-o", "et") if command == "export" else (command, "own.yaml")
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


def _format(rng: random.Random) -> tuple[str, ...]:
    return rng.choice(((), ("--json",)))


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
    *[_question] * 60,
    *[_hardware] * 35,
    *[_other_file] * 17,
)
