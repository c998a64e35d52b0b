"""Sections ``sweep`` and ``what_if``: variants of a scenario, and factors on its machine."""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from perfmodel.files import check_rows
from perfmodel.scenario.sections.base import Rules, Section, Switch, refuse

MOST_VARIANTS = 100_000
"""Most variants: at some ms each, more would take minutes to days and are taken for a mistake."""

_FIELD = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z0-9_]+)*")
_NOT_VARIED = ("perfmodel", "sweep", "plan")


def _check_field(name: str) -> str:
    section = name.partition(".")[0]
    check_rows(
        (not _FIELD.fullmatch(name), "a dotted field as for --set, such as 'strategy.bucket_cap'"),
        (section in _NOT_VARIED, f"a field of the question, not of {section!r}"),
        (
            section == "scale",
            "cluster.nodes or cluster.gpus_per_node: a variant is a whole cluster",
        ),
    )
    return name


FieldName = Annotated[str, AfterValidator(_check_field)]


Values = Annotated[
    tuple[Any, ...],
    AfterValidator(refuse(lambda values: not values, "a list of one value or more")),
    Field(json_schema_extra={"minItems": 1}),
]


class SweepSection(Section):
    """Fields and their values, by dotted names as for ``--set``.

    Every combination of the values of `grid`, each with every position of `zip`, whose lists have
    the same length and advance together.
    """

    grid: dict[FieldName, Values] = Field(
        default_factory=dict,
        description="every combination of these, such as cluster.nodes: [1, 2]",
    )
    zip: dict[FieldName, Values] = Field(
        default_factory=dict, description="lists of the same length that go together"
    )

    @property
    def size(self) -> int:
        """Number of variants."""
        rows = min((len(values) for values in self.zip.values()), default=1)
        return rows * math.prod(len(values) for values in self.grid.values())

    @property
    def axes(self) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
        """Each field with its section ("grid" or "zip") and its values."""
        return (
            (section, field, values)
            for section in ("grid", "zip")
            for field, values in getattr(self, section).items()
        )

    def _rules(self) -> Rules:
        lengths = {field: len(values) for field, values in self.zip.items()}
        lengths_text = ", ".join(f"{field} has {count}" for field, count in lengths.items())
        names = [field for _, field, _ in self.axes]
        nested = [
            (inner, outer) for outer in names for inner in names if inner.startswith(f"{outer}.")
        ]
        factors = " x ".join(str(len(values)) for values in self.grid.values())
        rows = f" x {min(lengths.values())} of zip" if lengths else ""
        return (
            (not names, "'grid' or 'zip' with a field and its values"),
            (
                len(set(lengths.values())) > 1,
                f"lists of one length in 'zip', but {lengths_text}",
            ),
            *(
                (names.count(name) > 1, f"each field once, but {name!r} is in 'grid' and in 'zip'")
                for name in names
            ),
            *(
                (True, f"fields apart from each other, but {inner!r} is in {outer!r}")
                for inner, outer in nested
            ),
            (
                self.size > MOST_VARIANTS,
                (
                    f"at most {MOST_VARIANTS:,} variants, but there are {self.size:,} "
                    f"({factors or 1}{rows})"
                ),
            ),
        )


INFINITE_FACTOR = 1e9
"""Factor of the word "infinite": bytes that took a second take a nanosecond, too little to change a
step time. A true infinity would give 0 times infinity in the shares of links. No factor is
larger."""

_LEAST_FACTOR = 1e-6
_FACTOR = "a number without unit: a factor on what there is, such as 2"


def _parse_infinite(value: object) -> object:
    check_rows((isinstance(value, str) and value != "infinite", f"{_FACTOR}, or 'infinite'"))
    return INFINITE_FACTOR if value == "infinite" else value


def _schema(least: float, *names: str) -> WithJsonSchema:
    number: dict[str, Any] = {"type": "number", "minimum": least, "maximum": INFINITE_FACTOR}
    choices = [number, *({"const": name} for name in names)]
    return WithJsonSchema({"anyOf": choices} if names else number)


SpeedFactor = Annotated[
    float,
    Field(strict=True, ge=_LEAST_FACTOR, le=INFINITE_FACTOR),
    BeforeValidator(_parse_infinite),
    _schema(_LEAST_FACTOR, "infinite"),
]
"""How many times as fast: a number above zero, or the word "infinite"."""

TimeFactor = Annotated[
    float,
    Field(strict=True, ge=0, le=INFINITE_FACTOR),
    BeforeValidator(refuse(lambda value: isinstance(value, str), _FACTOR)),
    _schema(0.0),
]
"""How many times as long: 0 is none at all."""


class WhatIf(Section):
    """Factors on the machine that the scenario names; 1 changes nothing.

    Bandwidths and `compute` are rates: 2 is twice as fast. Latencies and `launch` are times: 0.5 is
    half as long, 0 is none. The library chooses anew on another network, as on one that was built
    so, and keeps the channels that it found inside nodes.
    """

    network_bandwidth: SpeedFactor = Field(
        default=1.0, description="of all links between nodes, their NICs' ports included"
    )
    network_latency: TimeFactor = Field(
        default=1.0,
        description="what a step between nodes waits beyond its bytes: links and the library's own",
    )
    node_bandwidth: SpeedFactor = Field(
        default=1.0, description="of all links inside nodes: NVLink, PCIe, host memory"
    )
    nvlink_bandwidth: SpeedFactor = Field(
        default=1.0, description="of NVLinks alone, beside `node_bandwidth`"
    )
    pcie_bandwidth: SpeedFactor = Field(
        default=1.0, description="of PCIe links alone, beside `node_bandwidth`"
    )
    cpu_bandwidth: SpeedFactor = Field(
        default=1.0,
        description="of links between CPUs, and between a CPU and its GPUs (NVLink-C2C), alone",
    )
    memory_bandwidth: SpeedFactor = Field(
        default=1.0, description="of the hosts' memories and of copies staged in them, alone"
    )
    node_latency: TimeFactor = Field(
        default=1.0,
        description="what a step inside a node waits beyond its bytes: links and the library's own",
    )
    launch: TimeFactor = Field(
        default=1.0, description="what a collective costs that no link sees, such as its start"
    )
    library_rates: SpeedFactor = Field(
        default=1.0,
        description="what the library limits itself: rates of channels and connections, and sums",
    )
    communication: Switch = Field(default=True, description="false: collectives take no time")
    compute: SpeedFactor = Field(
        default=1.0,
        description="speed of all compute: kernels, copies, and the host that starts them",
    )
    jitter: Switch = Field(default=True, description="false: events of kind jitter do not happen")
    events: Switch = Field(default=True, description="false: no event happens, jitter included")
    jobs: Switch = Field(
        default=True, description="false: other jobs stand still, and keep their nodes"
    )
