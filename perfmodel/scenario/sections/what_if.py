"""What if some of the machine were faster: factors on what stands, in ``what_if:``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from perfmodel.files import FileModel

INFINITE = 1e9
"""What the word "infinite" multiplies a bandwidth by: bytes that took a second take a nanosecond,
which no step time shows. A true infinity would leave 0 times infinity in the shares of links."""

_MOST = 1e9
_LEAST = 1e-6


def _word(value: object) -> object:
    return INFINITE if value == "infinite" else value


def _schema(least: float, *words: str, above: bool = False) -> WithJsonSchema:
    bound = "exclusiveMinimum" if above else "minimum"
    number: dict[str, Any] = {"type": "number", bound: least, "maximum": _MOST}
    return WithJsonSchema(
        {"anyOf": [number, *({"const": word} for word in words)]} if words else number
    )


Faster = Annotated[
    float,
    Field(strict=True, ge=_LEAST, le=_MOST),
    BeforeValidator(_word),
    _schema(_LEAST, "infinite"),
]
"""How many times as fast: a number above zero, or the word "infinite"."""

Longer = Annotated[float, Field(strict=True, ge=0, le=_MOST), _schema(0.0)]
"""How many times as long: 0 is none at all."""

Present = Annotated[bool, Field(strict=True)]


class WhatIf(FileModel):
    """Factors on the machine that the scenario names; 1 changes nothing.

    Bandwidths and `compute` are rates: 2 is twice as fast. Latencies and `launch` are times: 0.5 is
    half as long, 0 is none. The library chooses anew on another network, as on one that was built
    so, and keeps the channels that it found inside nodes.
    """

    network_bandwidth: Faster = Field(
        default=1.0, description="of all links between nodes, their NICs' ports included"
    )
    network_latency: Longer = Field(
        default=1.0,
        description="what a step between nodes waits beyond its bytes: links and the library's own",
    )
    node_bandwidth: Faster = Field(
        default=1.0, description="of all links inside nodes: NVLink, PCIe, host memory"
    )
    node_latency: Longer = Field(
        default=1.0,
        description="what a step inside a node waits beyond its bytes: links and the library's own",
    )
    launch: Longer = Field(
        default=1.0, description="what a collective costs that no link sees, such as its start"
    )
    communication: Present = Field(
        default=True, description="false: collectives take no time at all, whoever carries them"
    )
    compute: Faster = Field(
        default=1.0,
        description="speed of all compute: kernels, copies, and the host that starts them",
    )
    jitter: Present = Field(default=True, description="false: events of kind jitter do not happen")
    events: Present = Field(default=True, description="false: no event happens, jitter included")
    jobs: Present = Field(
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
