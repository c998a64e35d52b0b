"""Sections ``events`` and ``jobs``: disturbances, other traffic and other jobs."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from perfmodel.files import (
    Bandwidth,
    Bytes,
    Count,
    Factor,
    FileModel,
    Latency,
    Nodes,
    Seconds,
    check_rows,
)
from perfmodel.scenario.sections.base import (
    OR_NAME,
    Index,
    Name,
    Placement,
    Rules,
    Section,
    expand_name,
)
from perfmodel.scenario.sections.model import ModelSection
from perfmodel.scenario.strategies.ddp import DdpStrategy


def _check_unique(numbers: tuple[int, ...]) -> tuple[int, ...]:
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    check_rows((twice, f"each once, but {', '.join(map(str, twice))} is there again"))
    return numbers


Start = Annotated[
    Seconds | None,
    Field(description="since the settled state began; default: from before the start"),
]

Indices = Annotated[tuple[Index, ...], Field(min_length=1), AfterValidator(_check_unique)]
"""Ranks, nodes or steps, counted from 0."""


class SlowEvent(Section):
    """GPUs whose work takes longer: a straggler."""

    ranks: Indices | None = Field(default=None, description="ranks of this job, counted from 0")
    nodes: Indices | None = Field(
        default=None, description="nodes of this job, counted from 0: all of their GPUs"
    )
    by: Factor = Field(description="how many times longer: 1.3 is 30 % slower")
    steps: Indices | None = Field(
        default=None, description="counted steps in which they are slow; default: all"
    )

    def _rules(self) -> Rules:
        return (
            (
                (self.ranks is None) == (self.nodes is None),
                "either 'ranks' or 'nodes', exactly one list",
            ),
        )


class JitterEvent(Section):
    """Random variation of every GPU's work, the same on average."""

    kind: Literal["normal", "lognormal", "gamma", "exponential"] = "lognormal"
    cv: Annotated[float, Field(strict=True, gt=0, le=1)] = Field(
        description="standard deviation over mean"
    )
    per: Literal["step", "layer"] = Field(
        default="step", description="one factor per GPU and step, or one per piece of work"
    )
    seed: Index | None = Field(default=None, description="default: the scenario's")

    def _rules(self) -> Rules:
        return (
            (
                self.kind == "normal" and self.cv > 1 / 3,
                "a cv of 1/3 at most with kind: normal, which would fall below zero",
            ),
        )


class DegradeEvent(Section):
    """A link that is slower than it should be."""

    link: Name = Field(
        description="'n0/nic0 -> fabric/leaf0' (one way), '--' (both ways), or a device: all its "
        "links; names may be patterns such as 'n[0-3]/nic*'"
    )
    to: Bandwidth | None = Field(
        default=None, description="what it still carries, headers taken off"
    )
    by: Factor | None = Field(default=None, description="how many times slower")
    latency: Latency | None = Field(default=None, description="its latency from then on")
    at: Start = None
    until: Seconds | None = None

    def _rules(self) -> Rules:
        return (
            (self.to is not None and self.by is not None, "'to' or 'by', not both"),
            (
                self.to is None and self.by is None and self.latency is None,
                "'to' (a bandwidth), 'by' (a factor) or 'latency', at least one",
            ),
            (
                self.until is not None and self.until <= (self.at or 0.0),
                "'until' later than 'at'",
            ),
        )


class DownEvent(FileModel):
    """A link that goes down; traffic on it stands still until it is routed around."""

    link: Name = Field(description="as for `degrade`")
    at: Start = None
    reroute_after: Seconds = Field(
        default=0.0, description="how long traffic over it stands still; unused without `at`"
    )


class LoseEvent(FileModel):
    """A NIC that is lost; its traffic stands still until another one takes it over."""

    nic: Name = Field(description="a NIC such as 'n1/nic3'")
    at: Start = None
    reroute_after: Seconds = Field(
        default=0.0, description="how long its traffic stands still; unused without `at`"
    )


class TrafficEvent(Section):
    """Other traffic on the machine, such as an input pipeline or checkpoints."""

    from_: Name = Field(
        alias="from",
        description="a device, or several such as 'n[0-3]/cpu0' (a range) or 'n0/gpu*'",
    )
    to: Name = Field(description="a device, or several: one for each sender, or one for all")
    rate: Bandwidth | None = Field(default=None, description="most that each takes")
    nbytes: Bytes | None = Field(default=None, description="size of a burst; default: no end")
    every: Seconds | None = Field(default=None, description="from burst to burst; default: once")
    at: Seconds = Field(default=0.0, description="since the settled state began")

    def _rules(self) -> Rules:
        return (
            (
                self.nbytes is None and self.rate is None,
                "'rate' (a stream) or 'nbytes' (a burst), at least one",
            ),
            (
                self.every is not None and (self.nbytes is None or self.every == 0),
                "'every' above zero, and together with 'nbytes'",
            ),
        )


class EventSection(Section):
    """One event; the field that is set is its kind."""

    slow: SlowEvent | None = None
    jitter: JitterEvent | None = None
    degrade: DegradeEvent | None = None
    down: DownEvent | None = None
    lose: LoseEvent | None = None
    traffic: TrafficEvent | None = None

    def _rules(self) -> Rules:
        kinds = ", ".join(map(repr, type(self).model_fields))
        return (
            (
                len(self.model_fields_set) != 1 or getattr(self, self.kind) is None,
                f"exactly one of {kinds} per event",
            ),
        )

    @property
    def kind(self) -> str:
        """The field that is set."""
        return next(iter(self.model_fields_set), "slow")


class OtherJob(FileModel):
    """Another DDP job on the same network, step after step; it computes as `compute` says."""

    name: Name | None = Field(default=None, description="default: its model's")
    model: Annotated[ModelSection, expand_name("name"), OR_NAME] = Field(
        description="as for this job; a name alone will do"
    )
    strategy: DdpStrategy = DdpStrategy()
    batch_per_gpu: Count
    nodes: Nodes
    placement: Placement = "packed"
    start: Seconds = Field(
        default=0.0,
        description="when its first step begins, since the settled state began; default: from "
        "before the start",
    )
