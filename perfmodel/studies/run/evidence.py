"""What an answer rests on: recorded trainings near it, and how far off their predictions were.

``evidence.csv`` has the records, each predicted from data sheets; ``python -m reports.validation``
writes it. Records and answers have the same five kinds and three sizes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import and_, attrgetter, ne
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from perfmodel.studies.run.steps.sized_job import SizedJob
    from perfmodel.topology.model import Gpu, Topology
    from perfmodel.workload.model import Workload

Grade = Literal[
    "measured near here", "between records", "data sheet only", "beyond anything recorded"
]
"""From the surest to the least sure."""

KINDS = ("model_kind", "chip", "precision", "strategy", "network")
SIZES = ("gpus", "parameters", "samples")
OWN = {
    "compute": ("model_kind", "chip", "precision", "samples"),
    "network": ("network",),
}
"""Kinds and sizes that measurements of a scenario's own stand for. Parameters are sent, too."""
NEAR, FAR = 2.0, 2.0
"""Factor within which each size is near a record's, and by which it may leave all of them."""
LISTED = 3
"""Records that are named."""
FILE = Path(__file__).with_suffix(".csv")


class Setting(NamedTuple):
    """What is trained on what, by the kinds and sizes that make a record near.

    `gpu`: its name; `chip`: what its data sheet says, however it is sold.
    `model_kind`: "transformer", "experts" (a transformer with some), "convolutional" or "other".
    `precision`: of products; bf16 and fp16 are both "16 bits".
    `strategy`: what is done with several GPUs: its kind and hook, or what the model is split by;
        "one GPU" where there is one.
    `network`: what joins the GPUs that are farthest apart; "none" for one.
    `samples`: of a GPU and pass; tokens where a sample has some. 0: of a sweep of a collective.
    """

    gpu: str
    model_kind: str
    chip: str
    precision: str
    strategy: tuple[str, ...]
    network: str
    gpus: int
    parameters: float
    samples: float

    def octaves(self, other: Setting, size: str) -> float:
        """How far a size is from that of another setting; powers of two."""
        return abs(math.log2(getattr(self, size) / getattr(other, size)))


class Record(NamedTuple):
    """Measured steps of one setting and source, beside their predictions from data sheets.

    `model`: as it is named; of a sweep, its collective. `rows`: how many were measured.
    `error`: median of predicted over measured time, less one; of a sweep without sign. `inside`:
        share of the measured ones within their 80 % interval, and `width`: high over low end less
        one; None where none has one.
    `first`: version that predicted them before anybody had looked; empty: they were in view.
    """

    table: str
    model: str
    setting: Setting
    rows: int
    error: float
    inside: float | None
    width: float | None
    first: str
    source: str


@dataclass(frozen=True, slots=True)
class Near:
    """A record that an answer rests on, in words. `apart`: in what it differs from the answer."""

    record: str
    error: float
    rows: int
    apart: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a step time rests on.

    `nearest`: records, the nearest first.
    `uncovered`: kinds that no record has, and sizes beyond those of all.
    `stated`: what of `OWN` the scenario has measurements of.
    """

    grade: Grade
    nearest: tuple[Near, ...]
    uncovered: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The grade, the nearest record and how far off that was, in words."""
        first, is_near = self.nearest[0], self.grade == "measured near here"
        beyond = f": {_in_words(self.uncovered)}" if self.uncovered and not is_near else ""
        own = f"; {' and '.join(self.stated)} by your own measurement" if self.stated else ""
        apart = f"; differs in {_in_words(first.apart)}" if first.apart else ""
        nearest = f"{'' if is_near else 'nearest: '}{first.record}"
        error = f"{100 * abs(first.error):.0f} %"
        return f"{self.grade}{beyond} ({nearest}: off by {error}{apart}){own}"


_WORDS = {
    "model_kind": "kind of model",
    "chip": "GPU",
    "gpus": "number of GPUs",
    "parameters": "size of the model",
    "samples": "batch per GPU",
}


def _in_words(names: Sequence[str]) -> str:
    return ", ".join(_WORDS.get(name, name) for name in names)


# ---------------------------------------------------------------- settings

JOIN = " + "
"""Between the parts of a strategy, in the file and in words."""
ONE_GPU = "one GPU"
HALF = frozenset({"bf16", "fp16"})
NETWORK_NAMES = {"infiniband": "InfiniBand", "roce": "RoCE", "omni-path": "Omni-Path"}


def setting_of(sized: SizedJob) -> Setting:
    """Setting of a job of a size."""
    job, gpus = sized.job, sized.size.gpus
    scenario, parallel = job.scenario, job.scenario.parallel
    degrees = {
        "tensor": parallel.tensor,
        "context": parallel.context.degree,
        "expert": parallel.expert,
        "pipeline": parallel.pipeline.stages,
    }
    parts = [name for name, degree in degrees.items() if degree > 1]
    hook = getattr(getattr(scenario.strategy, "hook", None), "kind", "none")
    parts = parts or [scenario.strategy.kind, *([] if hook == "none" else [hook])]
    return make_setting(
        job.model,
        job.gpu,
        scenario.compute.precision,
        ("your own",) if job.own else tuple(parts),
        network_between(sized.machine.topology, sized.size.nodes),
        gpus,
        sized.batch,
    )


def make_setting(
    model: Workload,
    gpu: Gpu,
    precision: str,
    strategy: tuple[str, ...],
    network: str,
    gpus: int,
    batch: int,
) -> Setting:
    """Setting of a model on GPUs; one GPU has neither strategy nor network."""
    kinds = {layer.kind for layer in model.layers}
    dense = (
        "transformer" if "attention" in kinds else "convolutional" if "conv" in kinds else "other"
    )
    return Setting(
        gpu=gpu.name,
        model_kind="experts" if model.routed_share < 1 else dense,
        chip=chip_of(gpu),
        precision="16 bits" if precision in HALF else precision,
        strategy=strategy if gpus > 1 else (ONE_GPU,),
        network=network if gpus > 1 else "none",
        gpus=gpus,
        parameters=float(max(model.parameters, 1)),
        samples=float(batch * (model.sample.tokens or 1)),
    )


def chip_of(gpu: Gpu) -> str:
    """What the data sheet says of a GPU: the same chip with more memory is the same one."""
    rates = max(gpu.peak_flops.values(), default=0.0) / 1e12, gpu.memory_Bps / 1e9
    return (
        f"{gpu.generation}, {rates[0]:.0f} TFLOP/s, {rates[1]:.0f} GB/s, {gpu.power_W or 0:.0f} W"
    )


def network_between(topology: Topology, nodes: int) -> str:
    """Name what joins nodes, or the GPUs of one."""
    if nodes > 1:
        return NETWORK_NAMES.get(topology.network, topology.network.upper())
    return "NVLink" if "nvlink" in topology.arcs.kinds[: topology.host_arcs] else "PCIe"


# ---------------------------------------------------------------- records


@cache
def load_records() -> tuple[Record, ...]:
    """Read the records that ship."""
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        return tuple(map(_read, rows))


def _read(row: Sequence[str]) -> Record:
    table, model, gpu, kind, chip, precision, strategy, network, *numbers, first, source = row
    gpus, parameters, samples, count, error, inside, width = numbers
    return Record(
        table,
        model,
        Setting(
            gpu,
            kind,
            chip,
            precision,
            tuple(strategy.split(JOIN)),
            network,
            int(gpus),
            float(parameters),
            float(samples),
        ),
        int(count),
        float(error),
        float(inside) if inside else None,
        float(width) if width else None,
        first,
        source,
    )


def evidence_of(sized: SizedJob) -> Evidence:
    """What the step of a job rests on; its own measurements stand for what they are of."""
    compute = sized.job.scenario.compute
    is_measured = {
        "compute": compute.measured_step is not None or compute.source == "file",
        "network": sized.ensemble.profile is not None,
    }
    return rate(
        setting_of(sized),
        load_records(),
        [name for name, is_own in is_measured.items() if is_own],
        covered_by(sized.job.gpu),
    )


def covered_by(gpu: Gpu) -> Sequence[str]:
    """Kinds that are known of a GPU without a training: products on it, or its like, were timed.

    Of accelerators they are not enough: all else of them is taken from GPUs.
    """
    return () if gpu.efficiency_assumed or gpu.estimated or gpu.accelerator else ("chip",)


def rate(
    setting: Setting,
    records: Sequence[Record],
    stated: Sequence[str] = (),
    covered: Sequence[str] = (),
) -> Evidence:
    """Grade a setting by its distance to records.

    Measured near here: a training has all kinds, and each size within a factor of 2. Beyond: the
    kind of model or a part of the strategy was never recorded, or a size leaves all that were
    recorded of its kind by more than a factor of 2. Data sheet only: GPU, precision or network was
    never recorded. Else it is between records, each of which has something of it.

    `stated`: parts of `OWN` that are measured, so that records need not have them.
    `covered`: kinds that something else than these records knows.
    """
    own = {name for part in stated for name in OWN[part]}
    kinds, sizes = ([name for name in names if name not in own] for names in (KINDS, SIZES))
    unseen = [
        name
        for name in kinds
        if name not in covered
        and not _values(setting, name).issubset(
            value for each in records for value in _values(each.setting, name)
        )
    ]
    outside = [name for name in sizes if _leaves(setting, records, name)]
    nearest = _nearest(setting, records, kinds, sizes)
    near = [each for each in nearest if not _apart(setting, each, kinds, sizes)]
    grade: Grade = "between records"
    if near:
        grade = "measured near here"
    elif outside or {"model_kind", "strategy"} & set(unseen):
        grade = "beyond anything recorded"
    elif unseen:
        grade = "data sheet only"
    return Evidence(
        grade,
        tuple(
            Near(
                describe(each),
                each.error,
                each.rows,
                _apart(setting, each, kinds, sizes),
                each.source,
            )
            for each in (near or nearest)[:LISTED]
        ),
        (*unseen, *outside),
        tuple(stated),
    )


def _nearest(
    setting: Setting, records: Sequence[Record], kinds: Sequence[str], sizes: Sequence[str]
) -> list[Record]:
    """Trainings that share most kinds with a setting, the nearest in size first."""
    kinds_of, asked = attrgetter(*KINDS), [name in kinds for name in KINDS]
    own, trainings = kinds_of(setting), [each for each in records if each.setting.samples]
    unlike = [sum(map(and_, asked, map(ne, own, kinds_of(each.setting)))) for each in trainings]
    least = min(unlike)
    return sorted(
        (each for each, count in zip(trainings, unlike, strict=True) if count == least),
        key=lambda each: sum(setting.octaves(each.setting, name) for name in sizes),
    )


def _apart(
    setting: Setting, record: Record, kinds: Sequence[str], sizes: Sequence[str]
) -> tuple[str, ...]:
    """Return the kinds that are others in a record, and the sizes beyond a factor of `NEAR`."""
    other = record.setting
    return (
        *(name for name in kinds if getattr(setting, name) != getattr(other, name)),
        *(name for name in sizes if setting.octaves(other, name) > math.log2(NEAR)),
    )


_SCOPES = {"gpus": "strategy", "parameters": "model_kind", "samples": "model_kind"}
"""Of which kind records have to be, to say how far a size was recorded."""


def _values(setting: Setting, kind: str) -> frozenset[str]:
    """Return a kind, or the parts that it has."""
    value = getattr(setting, kind)
    return frozenset((value,) if isinstance(value, str) else value)


def _leaves(setting: Setting, records: Sequence[Record], size: str) -> bool:
    """Whether a size leaves those of all records of its kind by more than a factor of `FAR`."""
    own = _values(setting, _SCOPES[size])
    recorded = [
        getattr(each.setting, size)
        for each in records
        if own & _values(each.setting, _SCOPES[size])
    ]
    value = getattr(setting, size)
    return bool(recorded) and not min(recorded) / FAR <= value <= max(recorded) * FAR


def describe(record: Record) -> str:
    """Say what a record is of."""
    setting = record.setting
    if setting.gpus == 1:
        return f"{record.model} on one {setting.gpu}, {setting.precision}"
    by = JOIN.join(setting.strategy)
    return (
        f"{record.model} on {setting.gpus:,} {setting.gpu}, {setting.network}, {by}, "
        f"{setting.precision}"
    )
