"""Section ``what_if``: factors on bandwidths, latencies and compute of the machine."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from perfmodel.files import FileModel
from perfmodel.scenario.sections.base import Switch

INFINITE = 1e9
"""Factor of the word "infinite": bytes that took a second take a nanosecond, too little to change a
step time. A true infinity would give 0 times infinity in the shares of links."""

_MOST = 1e9
_LEAST = 1e-6


def _parse_infinite(value: object) -> object:
    if isinstance(value, str) and value != "infinite":
        raise ValueError(f"{_FACTOR}, or 'infinite'")
    return INFINITE if value == "infinite" else value


_FACTOR = "a number without unit: a factor on what there is, such as 2"


def _refuse_quantity(value: object) -> object:
    if not isinstance(value, str):
        return value
    raise ValueError(_FACTOR)


def _schema(least: float, *names: str, above: bool = False) -> WithJsonSchema:
    bound = "exclusiveMinimum" if above else "minimum"
    number: dict[str, Any] = {"type": "number", bound: least, "maximum": _MOST}
    return WithJsonSchema(
        {"anyOf": [number, *({"const": name} for name in names)]} if names else number
    )


SpeedFactor = Annotated[
    float,
    Field(strict=True, ge=_LEAST, le=_MOST),
    BeforeValidator(_parse_infinite),
    _schema(_LEAST, "infinite"),
]
"""How many times as fast: a number above zero, or the word "infinite"."""

TimeFactor = Annotated[
    float, Field(strict=True, ge=0, le=_MOST), BeforeValidator(_refuse_quantity), _schema(0.0)
]
"""How many times as long: 0 is none at all."""


class WhatIf(FileModel):
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

    @property
    def changes(self) -> dict[str, float | bool]:
        """Fields that are not at their defaults."""
        return {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        }
