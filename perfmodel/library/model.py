"""What a communication library adds to the wire: protocols, overheads, credits, channels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import Field

from perfmodel.errors import Fault, InputError, one_of
from perfmodel.files import Bandwidth, Bytes, Seconds, Spec, load
from perfmodel.library.settings import Settings
from perfmodel.topology.model import Topology


class StepLatency(Spec):
    """Time that one step over one hop costs beyond the wire, by the kind of hop."""

    nvlink: Seconds
    pcie: Seconds
    network: Seconds
    memory: Seconds = 0.0
    """Between processes of one machine, through its memory."""
    source: str


class WireSegment(Spec):
    """How well long chunks travel: what lies `beyond` this size does so at `efficiency`."""

    beyond: Bytes
    efficiency: float = Field(gt=0, le=1)


class Protocol(Spec):
    """One way of moving a chunk.

    `wire_efficiency` is payload over bytes on the wire; `credits` is how many chunks an edge may
    have under way (1: a step costs alpha + nbytes * beta; more: latency is pipelined);
    `max_Bps`, if given, caps the algorithm's rate per rank; `nvlink_only` protocols need
    NVLink between all GPUs of a host. `latencies_per_step` is how often a step waits for the links'
    latency: twice where a receiver says that it is ready before each send. `reduce_rate` is how
    fast a rank adds what it received, where that is not hidden behind the wire. `wire_segments`,
    by rising `beyond`, say which parts of a chunk travel at another efficiency than its first
    bytes, so that the time of a step is piecewise linear in the size of its chunk. `host_step` is
    what a step costs the cores of a host, all together: where ranks are processes of one machine
    with fewer cores, a step through its memory takes at least that for each rank that sends there.
    `two_in_turn`: between two ranks, which have one connection both ways, a ready message waits
    behind the data written before it; segments in flight then go one at a time, each half a step's
    latency after the one before.
    """

    launch: Seconds
    launch_source: str
    step: StepLatency
    wire_efficiency: float = Field(gt=0, le=1)
    wire_source: str
    credits: int = Field(ge=1)
    credits_source: str
    max_rate: Bandwidth | None = None
    max_source: str = ""
    nvlink_only: bool = False
    latencies_per_step: float = Field(1.0, ge=1)
    latencies_source: str = ""
    two_in_turn: bool = False
    two_in_turn_source: str = ""
    reduce_rate: Bandwidth | None = None
    reduce_source: str = ""
    wire_segments: tuple[WireSegment, ...] = ()
    host_step: Seconds = 0.0
    host_source: str = ""


class Library(Spec):
    """A communication library as the simulator sees it.

    `algorithms`: what it runs for an operation, where that is not what
    `perfmodel.library.carry.OWN_ALGORITHM` says. `in_order`: between two ranks there is one
    connection, on which the messages of all collectives follow one another.
    """

    perfmodel: int
    name: str
    description: str
    workers: int = Field(ge=1)
    workers_source: str
    host_staged: bool = False
    algorithms: dict[str, str] = {}
    algorithms_source: str = ""
    in_order: bool = False
    in_order_source: str = ""
    protocols: dict[str, Protocol]
    sources: dict[str, str]


def library_on(library: Library, topology: Topology, settings: Settings) -> Library:
    """Return the library with the numbers of a machine's generation of GPU and kind of network."""
    del topology, settings
    return library


def protocols_of(library: Library, algorithm: str) -> Mapping[str, Protocol]:
    """Protocols in which a library runs an algorithm, with that algorithm's numbers."""
    del algorithm
    return library.protocols


@cache
def load_library(name: str) -> Library:
    """Return a library model by name.

    Raises
    ------
    InputError
        No such library; the message lists those that there are.
    """
    folder = Path(__file__).parent
    names = {path.stem for path in folder.glob("*.yaml")}
    if name not in names:
        raise InputError(Fault("library", repr(name), one_of(names, name)))
    return load(Library, folder / f"{name}.yaml")
