"""Measured corrections of a machine's collectives, and how far predictions of them are off.

Factors apply to the launch, to each step by its kind of hop, and to the bytes on the wire. A
residual, which depends smoothly on the size, applies to the whole time.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.files import FileModel, load_document, read_yaml
from perfmodel.files.spec import check_rows
from perfmodel.topology.model import Topology
from perfmodel.units import parse_bytes


@dataclass(frozen=True, slots=True)
class CollectiveContext:
    """What a residual may depend on; `algorithm` and `protocol` are empty before a choice."""

    op: str
    nbytes: int
    ranks: int
    hosts: int
    algorithm: str = ""
    protocol: str = ""


@dataclass(frozen=True)
class Corrections:
    """Factors on times (more than one: longer) and on rates (more than one: faster)."""

    launch: float = 1.0
    """On the time before the first byte moves."""
    uneven: float = 1.0
    """On what channels lose that do not run and end together (`Protocol.unevenness`)."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """On what a step costs beyond its bytes, by "protocol/hop"."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """On payload per byte on the wire, by "algorithm/protocol"."""
    issue: float = 1.0
    awaited: float = 1.0
    """`issue` and `awaited`: on the host's time to start a collective on one GPU, and on what a
    script that waits for each adds."""
    residual: Callable[[CollectiveContext], float] | None = None
    """Factor on the time of a collective in its context."""
    from_bytes: float = 0.0
    """Smallest size that was measured; 0: there is none."""
    likely: "Corrections | None" = None
    """Of a draw: the most likely ones, which it was drawn around."""

    def at(self, nbytes: float) -> "Corrections":
        """Those of a size: the likely factors fade away below what was measured.

        Long messages say little of short ones, which other protocols carry. A draw keeps its
        distance from the likely factors: intervals stay as wide as the fit leaves them.
        """
        octaves = math.log2(max(self.from_bytes, 1.0) / max(nbytes, 1.0))
        lost = min(max(octaves / FADE_OCTAVES - 1.0, 0.0), 1.0)
        if not lost:
            return self
        likely = self.likely or self
        return replace(
            self,
            launch=self.launch / likely.launch**lost,
            uneven=self.uneven / likely.uneven**lost,
            steps={
                key: own / likely.steps.get(key, 1.0) ** lost for key, own in self.steps.items()
            },
            rates={
                key: own / likely.rates.get(key, 1.0) ** lost for key, own in self.rates.items()
            },
        )


FADE_OCTAVES = 2.0
"""Octaves below the smallest measured size to which factors carry, and over which they then fade.
From 37 recorded sweeps, each with a profile of its rows from 1 MiB on: within two octaves 10 % off
in the median, datasheets 20 %; farther below 13 %, datasheets 11 %. So it is of their rows from
128 KiB (7 and 11, 11 and 11) and from 16 MiB on (8 and 13, 15 and 9)."""


Band = Literal["latency", "buckets", "bandwidth"]
"""Below 256 KiB; 256 KiB to 64 MiB, where gradient buckets lie; above."""

Familiarity = Literal["several", "few", "new"]
"""How many sweeps of the same kind of machine and collective were recorded."""

BANDS: tuple[tuple[Band, float], ...] = (
    ("latency", parse_bytes("256 KiB")),
    ("buckets", parse_bytes("64 MiB") + 1),
    ("bandwidth", float("inf")),
)
"""Name of a band and the size at which the next one begins; bytes."""

SEVERAL_SWEEPS = 3
"""Sweeps from which on a kind of machine is well known."""

_MARGINS = {"none": "hardware", "infiniband": "hardware", "roce": "roce", "efa": "efa"}
"""Margin in ``strangers.yaml`` by network between hosts: adapters and links inside hosts move bytes
without the hosts' software. RoCE below 256 KiB lies farther off, as does what software moves (TCP,
TCPX, TCPXO, Omni-Path), and unlike from cloud to cloud."""

Factors = tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(ge=1)]]


class Spread(FileModel):
    """Contents of ``spread.yaml``, which ``reports.validation --spread`` writes."""

    perfmodel: Literal[1] = 1
    kind: Literal["spread"] = "spread"
    source: str
    probability: float
    factors: Mapping[Familiarity, Mapping[Band, Factors]]
    seen: Mapping[str, Annotated[int, Field(ge=1)]]
    """Sweeps by kind of machine and collective."""

    @model_validator(mode="after")
    def _complete(self) -> "Spread":
        bands, named = {name for name, _ in BANDS}, ", ".join(sorted(name for name, _ in BANDS))
        check_rows(
            *(
                (set(self.factors.get(each, {})) != bands, f"factors of {each!r} for {named}")
                for each in ("several", "few", "new")
            )
        )
        return self


def band_of(nbytes: float) -> Band:
    """Band of size that a message falls into.

    Examples
    --------
    >>> [band_of(n) for n in (262143, 262144, 2**26, 2**26 + 1)]
    ['latency', 'buckets', 'buckets', 'bandwidth']
    """
    return next(name for name, end in BANDS if nbytes < end)


def kind_of_machine(topology: Topology) -> str:
    """Generation of the GPUs, what joins those of a host, and what joins hosts.

    Two machines of the same kind are driven by the same constants of the model.
    """
    host = [topology.arcs.kinds[index] for index in range(topology.host_arcs)]
    ends = {name for index in range(topology.host_arcs) for name in topology.arcs.names[index]}
    switched = any(topology.devices[name].kind == "nvswitch" for name in ends)
    pcie = "PCIe with P2P" if topology.gpu_p2p else "PCIe"
    joined = ("NVSwitch" if switched else "NVLink") if "nvlink" in host else pcie
    inside = "one GPU per host" if topology.gpus_per_host == 1 else joined
    network = topology.network if topology.hosts > 1 else "one host"
    return f"{topology.gpu.generation}, {inside}, {network}"


@lru_cache(maxsize=4)
def load_spread(path: Path | None = None) -> Spread:
    """Read the shipped spread, or another file of its shape.

    Raises `InputError`: everything that is wrong in the file, with lines.
    """
    return load_document(Spread, path or (Path(__file__).parent / "nccl" / "spread.yaml"))


@lru_cache(maxsize=1)
def _margins_of_strangers() -> Mapping[str, Mapping[Band, float]]:
    """Read how much wider intervals are than records in view ask for: factors by class and band.

    Records that enter later lie farther off than those that constants were fitted without.
    """
    return dict(read_yaml(Path(__file__).parent / "nccl" / "strangers.yaml"))


def profile_margin(nbytes: float) -> float:
    """Factor by which either end of an interval lies farther with a profile of another machine."""
    return _margins_of_strangers()["profile"][band_of(nbytes)]


def familiarity(spread: Spread, topology: Topology, op: str) -> Familiarity:
    """How well the recorded sweeps know a machine and a collective.

    A known machine with another collective is at best known from few sweeps.
    """
    kind = kind_of_machine(topology)
    if spread.seen.get(f"{kind}, {op}", 0) >= SEVERAL_SWEEPS:
        return "several"
    return "few" if any(key.startswith(f"{kind}, ") for key in spread.seen) else "new"


def datasheet_interval_s(
    topology: Topology, op: str, nbytes: float, time_s: float
) -> tuple[float, float]:
    """80 % interval of a time that was predicted from datasheets alone: low and high; seconds.

    `nbytes` are as nccl-tests counts them, `time_s` is the prediction.
    """
    low, high = spread_factors(topology, op, nbytes)
    return low * time_s, high * time_s


def spread_factors(topology: Topology, op: str, nbytes: float) -> tuple[float, float]:
    """Factors on a predicted time between which eight of ten measured times lie."""
    return factors_by_band(topology, op)[band_of(nbytes)]


def factors_by_band(topology: Topology, op: str) -> Mapping[Band, tuple[float, float]]:
    """Return `spread_factors` of each band of sizes."""
    spread, network = load_spread(), topology.network if topology.hosts > 1 else "none"
    margins = _margins_of_strangers()[_MARGINS.get(network, "software")]
    return {
        band: (low / margins[band], high * margins[band])
        for band, (low, high) in spread.factors[familiarity(spread, topology, op)].items()
    }
