"""Words to paste: how a user's own programs are told the settings of a scenario.

What each program calls a field stands in ``words.yaml``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from itertools import chain, starmap
from shlex import quote
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from perfmodel.files import FileModel, shipped, yaml_text
from perfmodel.files.spec import ShippedTable
from perfmodel.scenario import LibrarySection, Scenario, batch_per_gpu
from perfmodel.scenario.sections.parallel import ParallelSection
from perfmodel.scenario.sections.training import ComputeSection, Float8Section
from perfmodel.scenario.strategies.ddp import DdpStrategy, ZeroRedundancyStrategy
from perfmodel.scenario.strategies.deepspeed import OneBitStrategy
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.scenario.strategies.strategy import PriorityStrategy, StrategySection
from perfmodel.training.ddp.options import DEFAULT_CAP_BYTES

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """What one program is told.

    `title`: the program and its version; `text`: what to paste.
    `left_out`: fields of the scenario that the program has no word for.
    """

    title: str
    text: str
    left_out: tuple[str, ...]

    @property
    def remark(self) -> str:
        """What the program has no word for, as a sentence; "" if that is nothing."""
        return f"It has no word for {', '.join(self.left_out)}." if self.left_out else ""


def _listed(value: object) -> object:
    rows = value if isinstance(value, list) else [] if value is None else [value]
    return [{"word": each} if isinstance(each, str) else each for each in rows]


class _Row(FileModel):
    word: str
    values: Mapping[str, Any] | None = None
    per: float | None = None
    always: bool = False

    def say(self, value: Any) -> Any:
        """Return what a value is written as; None where it needs no word.

        Raises `KeyError`: there is no word for it.
        """
        if self.per is not None:
            scaled = [round(each / self.per, 12) for each in _items(value)]
            whole = [int(each) if each == int(each) else each for each in scaled]
            return whole if isinstance(value, tuple) else whole[0]
        if self.values is None:
            return value
        text = str(value)  # of switches True and False, as YAML's become
        said = self.values[text if text in self.values else "*"]
        return said.replace("{}", text) if isinstance(said, str) else said


def _items(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


class _Program(FileModel):
    name: str
    title: str
    source: str
    of: tuple[str, ...]
    of_layouts: tuple[str, ...] = ()
    form: Literal["python", "flags", "environment", "json", "yaml"]
    start: Mapping[str, Any] = {}
    lines: Mapping[str, str] = {}
    comment: str = ""
    asks: tuple[str, ...] = ("strategy", "parallel", "compute")
    words: Mapping[str, Annotated[tuple[_Row, ...], BeforeValidator(_listed)]]


class _Table(ShippedTable):
    silent: frozenset[str]
    programs: tuple[_Program, ...]


_table = shipped(_Table, __file__, "words.yaml")


def words_of(scenario: Scenario, gpus: int, nodes: int) -> dict[str, Words]:
    """Return what programs that train as the scenario says are told, by the names of the programs.

    Parameters
    ----------
    scenario : Scenario
        With a strategy of its own, not ``auto``.
    gpus, nodes : int
        Of the whole cluster.

    Raises
    ------
    InputError
        Degrees or a batch that do not divide the GPUs.
    """
    strategy = scenario.strategy
    label = f"fsdp{strategy.version}" if isinstance(strategy, FsdpStrategy) else strategy.kind
    stated, usual = _stated(scenario), _usual(scenario)
    changed = {
        name: value
        for name, value in stated.items()
        if (value != usual[name] if name in usual else value not in (None, False, ()))
    }
    changed |= _derived(scenario, label, gpus, nodes)
    found = {}
    for program in _table().programs:
        layouts = () if scenario.parallel.is_plain else program.of_layouts
        if {label, "*"}.intersection((*program.of, *layouts)):
            said, left_out = _say(program, stated, changed)
            if said or program.start:
                found[program.name] = Words(program.title, _write(program, said), left_out)
    return found


# ---------------------------------------------------------------- fields of a scenario


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield dotted fields and their values."""
    if isinstance(value, Mapping) and name != "library.env":
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name, value


def _fields(
    strategy: StrategySection, parallel: ParallelSection, compute: Fields, **others: Fields
) -> Fields:
    sections = {"strategy": strategy.model_dump(), "parallel": parallel.model_dump()}
    sections |= {"compute": compute, **others}
    return dict(chain.from_iterable(starmap(_flat, sections.items())))


def _stated(scenario: Scenario) -> Fields:
    compute = scenario.compute.model_dump()
    if scenario.compute.precision == "fp8":
        compute["fp8"] = (scenario.compute.fp8 or Float8Section()).model_dump()
    model = {"dtype": scenario.model.dtype, "tokens": scenario.model.length}
    library = scenario.library.model_dump()
    return _fields(scenario.strategy, scenario.parallel, compute, model=model, library=library)


def _usual(scenario: Scenario) -> Fields:
    """Fields that are what programs do when they are told nothing, and their values."""
    strategy = type(scenario.strategy).model_validate({"kind": scenario.strategy.kind})
    compute = ComputeSection(precision=scenario.compute.precision).model_dump()
    return _fields(strategy, ParallelSection(), compute, library=LibrarySection().model_dump())


def _derived(scenario: Scenario, label: str, gpus: int, nodes: int) -> Fields:
    """Work out what programs want and no field says; without what is not there."""
    parallel, steps = scenario.parallel, scenario.strategy.accumulate
    micro, ranks = batch_per_gpu(scenario, gpus), scenario.data_ranks(gpus)
    is_piped = parallel.pipeline.stages > 1
    fields = {
        "batch.micro": micro,
        "batch.global": micro * ranks * steps,
        "batch.local": micro * steps if is_piped else micro,
        "batch.piped": micro if is_piped else None,
        "batch.schedule": parallel.pipeline.schedule if is_piped else None,
        "ranks.gpus": gpus,
        "ranks.nodes": nodes,
        "ranks.per_node": gpus // nodes,
        "ranks.whole_sequences": parallel.tensor > 1 and not parallel.sequence_parallel,
        "compute.autocast": _autocast(scenario),
        "sharded.optimizer": scenario.compute.optimizer if label == "zero_redundancy" else None,
        "precision.mixed": getattr(scenario.strategy, "param_dtype", None)
        or _autocast(scenario)
        or "no",
        **_of_strategy(scenario.strategy, label, ranks),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _autocast(scenario: Scenario) -> str | None:
    """Precision that layers are cast to; None where none are, or a wrapper does it."""
    strategy, precision = scenario.strategy, scenario.compute.precision
    is_wrapped = getattr(strategy, "param_dtype", None) or getattr(
        strategy, "mixed_precision", None
    )
    is_own = scenario.model.dtype not in (None, "fp32") or precision in ("fp32", "tf32")
    return None if is_wrapped or is_own else precision


def _of_strategy(strategy: StrategySection, label: str, ranks: int) -> Fields:
    match strategy:
        case DdpStrategy() | ZeroRedundancyStrategy():
            buckets = strategy if isinstance(strategy, DdpStrategy) else strategy.ddp
            return _buckets(buckets) | {"ranks.replicas": ranks, "ranks.shards": 1}
        case FsdpStrategy():
            return {f"{label}.{name}": value for name, value in _fsdp(strategy, ranks).items()}
        case OneBitStrategy():
            name = "var_freeze_step" if strategy.optimizer == "zero_one_adam" else "freeze_step"
            return {f"warm_up.{name}": strategy.freeze_step}
        case PriorityStrategy():
            return {"credit.bytes": strategy.credit_bytes}
    return {}


def _buckets(section: DdpStrategy) -> Fields:
    """Caps as PyTorch takes them, which has no word for a first bucket beside a cap."""
    listed = section.bucket_caps
    if section.first_bucket is not None:
        listed = (section.first_bucket, section.bucket_cap or DEFAULT_CAP_BYTES)
    return {"buckets.cap": section.bucket_cap if listed is None else None, "buckets.caps": listed}


def _fsdp(section: FsdpStrategy, ranks: int) -> Fields:
    shards, resharded = section.shard_ranks(ranks), bool(section.reshard_after_forward)
    copies = ranks // shards
    names = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
    hybrid = {"mesh": (copies, shards), "replicas": copies, "shards": shards}
    return {
        **section.model_dump(),
        "sharding": names[2 * (copies > 1) + (not resharded)],
        "elements": section.unit_elements if section.wrap == "size" else None,
        **(hybrid if copies > 1 else {}),
    }


# ---------------------------------------------------------------- words of a program


Said = list[tuple[str, Any]]


def _say(program: _Program, stated: Fields, changed: Fields) -> tuple[Said, tuple[str, ...]]:
    """Return words and what is written after each, and the fields that there are no words for."""
    said: Said = []
    left_out: dict[str, None] = {}
    for name, value in (stated | changed).items():
        rows, is_changed = program.words.get(name.replace(".ddp.", ".")), name in changed
        if rows is None and is_changed and name.split(".")[0] in program.asks:
            left_out[name] = None
        for row in rows or ():
            if is_changed or (row.always and value is not None):
                try:
                    said.append((row.word, row.say(value)))
                except KeyError:
                    left_out[name] = None
    order = {row.word: at for at, row in enumerate(chain(*program.words.values()))}
    told = sorted((each for each in said if each[1] is not None), key=lambda each: order[each[0]])
    silent = _table().silent
    return told, tuple({_shortened(name): None for name in left_out if name not in silent})


def _shortened(name: str) -> str:
    """Name what a field of a hook, of fp8 and the like belongs to."""
    kind, *path = name.split(".")
    return ".".join((kind, *path[: 1 if kind == "compute" or path[0] == "hook" else 2]))


def _write(program: _Program, said: Said) -> str:
    if program.form == "flags":
        return " ".join(filter(None, starmap(_flag, said)))
    if program.form == "environment":
        pairs = (each if isinstance(each, Mapping) else {word: each} for word, each in said)
        return "\n".join(
            f"{word}={quote(str(value))}" for pair in pairs for word, value in pair.items()
        )
    tree = _tree(program.start, said)
    if program.form == "json":
        return json.dumps(tree)
    if program.form == "yaml":
        return yaml_text(tree, program.comment).rstrip()
    shown = {line: tree[name] for name, line in program.lines.items() if name in tree}
    return "\n".join(
        line.replace("{}", _arguments(told) if isinstance(told, Mapping) else str(told))
        for line, told in shown.items()
    ).replace(", )", ")")


def _flag(word: str, value: Any) -> str:
    if value is True or value is False:
        return word if value else ""
    return f"{word} {' '.join(map(str, _items(value)))}".strip()


def _tree(start: Mapping[str, Any], said: Said) -> dict[str, Any]:
    """Put words with dots into each other."""
    tree = deepcopy(dict(start))
    for word, value in said:
        *path, last = word.split(".")
        reduce(lambda inner, key: inner.setdefault(key, {}), path, tree)[last] = value
    return tree


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_expression(value)}" for name, value in values.items())


def _expression(value: Any) -> str:
    """Write a Python value; a mapping is a call of its only key."""
    if isinstance(value, Mapping):
        ((function, values),) = value.items()
        return f"{function}({_arguments(values)})"
    return str(value)
