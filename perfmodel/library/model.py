"""A communication library as its file describes it: protocols, overheads, credits, algorithms."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, model_validator

from perfmodel.errors import look_up
from perfmodel.files import Bandwidth, Bytes, Count, FileModel, Seconds, load_document
from perfmodel.files.spec import check_rows
from perfmodel.topology.model import Topology


class Rule(FileModel):
    """Algorithms of groups with fewer than `below` ranks (no number: all that are left).

    The first algorithm serves sizes below the first of `sizes` (bytes), and so on; the last all
    others.
    """

    below: Count | None = None
    sizes: tuple[Count, ...] = ()
    algorithms: Annotated[tuple[str, ...], Field(min_length=1)]


def _check_rules(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    bounds = [rule.below for rule in rules[:-1]]
    is_last_bounded = rules[-1].below is not None
    is_rising = None not in bounds and bounds == sorted(bounds, key=lambda b: b or 0)
    counts = all(len(rule.algorithms) == len(rule.sizes) + 1 for rule in rules)
    check_rows(
        (is_last_bounded or not is_rising, "rules by rising 'below', the last one without"),
        (
            not counts or not all(list(rule.sizes) == sorted(rule.sizes) for rule in rules),
            "rising 'sizes', and one algorithm more than there are sizes",
        ),
    )
    return rules


class Decision(FileModel):
    """Rules of one operation, for small groups first.

    `counts` says what a size is: the whole of a collective as nccl-tests counts it, or one rank's
    part of it. `odd` replaces algorithms where the number of ranks is no power of two.
    """

    counts: Literal["whole", "part"]
    odd: dict[str, str] = {}
    rules: Annotated[tuple[Rule, ...], Field(min_length=1), AfterValidator(_check_rules)]


def decide_algorithm(decision: Decision, nbytes: float, ranks: int) -> str:
    """Return the algorithm for a size and a number of ranks.

    Parameters
    ----------
    decision : Decision
    nbytes : float
        As nccl-tests counts it.
    ranks : int
    """
    size = nbytes if decision.counts == "whole" else nbytes / ranks
    rule = next(rule for rule in decision.rules if rule.below is None or ranks < rule.below)
    name = rule.algorithms[bisect_right(rule.sizes, size)]
    return name if ranks & (ranks - 1) == 0 else decision.odd.get(name, name)


class StepLatency(FileModel):
    """Time that one step over one hop costs beyond the wire, by the kind of hop."""

    nvlink: Seconds
    pcie: Seconds
    network: Seconds
    memory: Seconds = 0.0
    """Between processes of one machine, through its memory."""
    source: str


class WireSegment(FileModel):
    """How well long chunks travel: what lies `beyond` this size does so at `efficiency`."""

    beyond: Bytes
    efficiency: float = Field(gt=0, le=1)


class Sourced(FileModel):
    """Numbers of which many have their source beside them: ``launch: 5 us``, ``launch_source: x``.

    `cited`: the sources, by the beginning of the number's name.
    """

    cited: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _gather_sources(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):  # read already
            return values
        ending = "_source"
        own = {name: value for name, value in values.items() if not name.endswith(ending)}
        cited = {name.removesuffix(ending): values[name] for name in values.keys() - own.keys()}
        unknown = [name for name in cited if not any(n.startswith(name) for n in cls.model_fields)]
        check_rows((unknown, f"sources of {', '.join(sorted(unknown))}, of which it has no number"))
        return own | ({"cited": cited} if cited else {})


class Protocol(Sourced):
    """How a chunk is moved, and what that costs.

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
    `unevenness` is what a collective loses whose ranks carry one MiB each, because its parallel
    channels do not start, run and end together: a sum of m independent chunk times strays from its
    mean by sqrt(m), so the loss grows with the square root of the bytes.
    `copy_rate` is how fast the thread block of one channel moves bytes within its GPU. A ring's
    loop ends with a chunk that a block receives and copies while it sends nothing: one step more
    than there are transfers, which counts where ranks are few and links as fast as blocks.
    `each_peer` is what one more send of a group of sends adds to its start.
    """

    launch: Seconds
    step: StepLatency
    wire_efficiency: float = Field(gt=0, le=1)
    switch_efficiency: float = Field(1.0, gt=0, le=1)
    """Payload over bytes on a link to a switch that reduces or copies."""
    network_efficiency: float = Field(1.0, gt=0, le=1)
    """Payload over what the network's links could carry meanwhile."""
    staged_efficiency: float = Field(1.0, gt=0, le=1)
    """The same, on top, where bytes rest in host memory between GPU and NIC."""
    two_way_efficiency: float = Field(1.0, gt=0, le=1)
    """Payload over bytes on the links of a host between whose GPUs bytes rest in host memory, where
    a GPU sends and receives at once: writes, reads and what answers them share the same links."""
    network_rate: Bandwidth | None = None
    """Most that connections of one channel of a ring carry between two hosts."""
    credits: int = Field(ge=1)
    max_rate: Bandwidth | None = None
    unevenness: Seconds = 0.0
    copy_rate: Bandwidth | None = None
    each_peer: Seconds = 0.0
    nvlink_only: bool = False
    latencies_per_step: float = Field(1.0, ge=1)
    two_in_turn: bool = False
    reduce_rate: Bandwidth | None = None
    wire_segments: tuple[WireSegment, ...] = ()
    host_step: Seconds = 0.0
    up_to: Bytes | None = None
    """Longest send for which the protocol serves; none: all."""
    beyond: Bytes | None = None
    """Sends no longer than this are another protocol's."""

    @property
    def bounded(self) -> bool:
        """Whether the size of a send decides if the protocol serves."""
        return self.up_to is not None or self.beyond is not None

    def serves(self, chunk_bytes: float) -> bool:
        """Whether sends of this size go by this protocol."""
        fits = self.up_to is None or chunk_bytes <= self.up_to
        return fits and (self.beyond is None or chunk_bytes > self.beyond)


class Variant(FileModel):
    """Numbers of protocols that differ for some hardware or some algorithms.

    Empty lists mean all; `networks` names those between hosts, so that a variant with any applies
    to several hosts only. Later variants override earlier ones.
    """

    generations: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    launch: Seconds | None = None
    step: Mapping[Literal["nvlink", "pcie", "network"], Seconds] = {}
    """Latencies of a step that differ."""
    switch_efficiency: float | None = Field(None, gt=0, le=1)
    network_efficiency: float | None = Field(None, gt=0, le=1)
    staged_efficiency: float | None = Field(None, gt=0, le=1)
    credits: int | None = Field(None, ge=1)
    unevenness: Seconds | None = None
    own_clock: bool = False
    """Whether the times are stated of this hardware itself, not at the library's clock."""
    source: str

    def fits(self, generation: str, network: str) -> bool:
        """Whether the variant applies to this hardware."""
        return (not self.generations or generation in self.generations) and (
            not self.networks or network in self.networks
        )

    def covers(self, algorithm: str, protocol: str) -> bool:
        """Whether the variant applies to this protocol of this algorithm."""
        return (not self.algorithms or algorithm in self.algorithms) and (
            not self.protocols or protocol in self.protocols
        )


class SocketCount(FileModel):
    """Threads that NCCL starts for a channel and peer, and connections of each thread."""

    threads: int = Field(ge=1)
    each: int = Field(ge=1)


class SocketCosts(Sourced):
    """How a library drives TCP: connections by maker of the network adapter, and their copies.

    `by_adapter` has "other" for all that are not named. `copies` is what one thread moves through
    the kernel, one way.
    """

    by_adapter: dict[str, SocketCount]
    most_threads: int = Field(ge=1)
    most: int = Field(ge=1)
    source: str
    copies: Bandwidth
    uneven: float = Field(0.0, ge=0, le=1)
    """Spread of the rates of connections (of their logarithm); a ring waits for the slowest."""


class CommLibrary(Sourced):
    """A communication library as the simulator sees it.

    `variants`: what differs by hardware and algorithm (see `library_on`); `by_algorithm`: protocols
    of algorithms whose numbers differ from `protocols`; `issue`: host time to start a collective on
    one GPU, which one process that drives several spends for each in turn; `awaited`: what a script
    adds to each collective that it waits for before it starts the next.
    `algorithms`: what it runs for an operation, where that is not what
    `perfmodel.library.lowering.lower.OWN_ALGORITHM` says; `decisions`: the same by size and ranks;
    `runs_as`: operations that it runs as another one.
    `in_order`: between two ranks there is one connection, on which the messages of all collectives
    follow one another; a host keeps at most `device_queue` bytes of one in the queue of its network
    device, behind which what it writes to another waits.
    `channels`: parallel rings at most, where it is not the links that decide.
    Where ranks are processes on CPUs, a step of DistributedDataParallel costs a process
    `host_step`, `host_tensor` for each gradient, and the gradients' bytes at the rate
    `host_copies`, beyond its layers and collectives; a hook that compresses converts at the rate
    `host_casts`. Where such processes share the cores of one machine (`Sockets.cores`), each call
    keeps a core busy for `core_call` on every rank, and each message at both of its ends for
    `core_message`, at the receiver's with its bytes too: `core_frame` for each packet of the
    network (`Sockets.frame_bytes`) or, where its size is not known, at the rate `core_bytes`. And
    backward keeps one busy for `core_layer` and `core_gradient` each time. Idle cores make nothing
    longer.
    """

    perfmodel: int
    name: str
    description: str
    workers: int = Field(ge=1)
    nccl_tuner: bool = False
    """Whether NCCL's tuner chooses algorithm, protocol and channels."""
    host_staged: bool = False
    algorithms: dict[str, str] = {}
    runs_as: dict[str, str] = {}
    decisions: dict[str, Decision] = {}
    in_order: bool = False
    channels: Count | None = None
    device_queue: Bytes = 0
    host_step: Seconds = 0.0
    host_tensor: Seconds = 0.0
    host_copies: Bandwidth | None = None
    host_casts: Bandwidth | None = None
    core_call: Seconds = 0.0
    core_message: Seconds = 0.0
    core_bytes: Bandwidth | None = None
    core_frame: Seconds = 0.0
    core_layer: Seconds = 0.0
    core_gradient: Seconds = 0.0
    protocols: dict[str, Protocol]
    variants: tuple[Variant, ...] = ()
    by_algorithm: dict[str, dict[str, Protocol]] = {}
    issue: Seconds = 0.0
    awaited: Seconds = 0.0
    sockets: SocketCosts | None = None
    """Over TCP; none: the links decide."""
    clock_GHz: float | None = Field(None, gt=0)
    """Clock of a GPU at which the times of its kernels are stated (`library_on`)."""
    sources: dict[str, str]


def own_algorithm(library: CommLibrary, op: str, nbytes: float, ranks: int) -> str | None:
    """Algorithm that a library's file names for an operation; None where it names none."""
    decision = library.decisions.get(op)
    return (
        library.algorithms.get(op)
        if decision is None
        else decide_algorithm(decision, nbytes, ranks)
    )


def library_on(library: CommLibrary, topology: Topology) -> CommLibrary:
    """Return the library with the numbers of a machine's generation of GPU and kind of network.

    Times that a GPU spends in instructions are stated at the library's clock, and are shorter on a
    GPU with a higher one.
    """
    network = topology.network if topology.hosts > 1 else "none"
    fitting = [v for v in library.variants if v.fits(topology.gpu.generation, network)]
    named = {algorithm for variant in fitting for algorithm in variant.algorithms}
    slower = _slower(library, topology)
    return library.model_copy(
        update={
            "variants": (),
            "protocols": _vary_protocols(library, fitting, "", slower),
            "by_algorithm": {
                name: _vary_protocols(library, fitting, name, slower) for name in sorted(named)
            },
        }
    )


def _slower(library: CommLibrary, topology: Topology) -> float:
    """Clock at which times are stated over that of the GPU; 1 where either is not known."""
    clock_Hz = topology.gpu.clock_Hz
    if library.clock_GHz is None or topology.gpu.generation == "cpu" or clock_Hz <= 0:
        return 1.0
    return library.clock_GHz * 1e9 / clock_Hz


def _at_clock(protocol: Protocol, slower: float) -> Protocol:
    """Protocol with the times that a GPU spends in instructions, on a GPU of another clock."""
    update: dict[str, Any] = {name: getattr(protocol, name) * slower for name in CLOCKED}
    inside = {name: getattr(protocol.step, name) * slower for name in ("nvlink", "pcie")}
    update["step"] = protocol.step.model_copy(update=inside)
    if protocol.copy_rate is not None:
        update["copy_rate"] = protocol.copy_rate / slower
    return protocol.model_copy(update=update)


CLOCKED = ("launch", "unevenness", "each_peer")
"""Times of a protocol that kernels spend, beside the steps inside a host and copies; between hosts
it is the proxy's and the NIC's time that counts."""


def protocols_of(library: CommLibrary, algorithm: str) -> Mapping[str, Protocol]:
    """Protocols in which a library runs an algorithm, with that algorithm's numbers."""
    return library.by_algorithm.get(algorithm, library.protocols)


def _vary_protocols(
    library: CommLibrary, variants: Sequence[Variant], algorithm: str, slower: float
) -> dict[str, Protocol]:
    """Protocols with the variants that apply to an algorithm ("": of all), at the GPU's clock."""
    varied = {}
    for name, protocol in library.protocols.items():
        applying = [variant for variant in variants if variant.covers(algorithm, name)]
        scaled = reduce(_apply_variant, [v for v in applying if not v.own_clock], protocol)
        own = [v for v in applying if v.own_clock]
        varied[name] = reduce(_apply_variant, own, _at_clock(scaled, slower))
    return varied


def _apply_variant(protocol: Protocol, variant: Variant) -> Protocol:
    names = Variant.model_fields.keys() & (Protocol.model_fields.keys() - {"step"})
    changes = {name: getattr(variant, name) for name in names}
    return protocol.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
        | {"step": protocol.step.model_copy(update=cast("Mapping[str, float]", variant.step))}
    )


@cache
def load_library(name: str) -> CommLibrary:
    """Return a library model by name.

    Raises
    ------
    InputError
        No such library; the message lists those that there are.
    """
    files = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
    return load_document(CommLibrary, look_up(files, name, "library"))
