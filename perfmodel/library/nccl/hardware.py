"""NCCL's table of hardware: links' speeds as it takes them, and those that its search tries."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from perfmodel.files import FileModel, load_document


class _Capability(FileModel):
    source: str
    of: dict[str, int]
    consumer: dict[str, int]
    consumer_names: tuple[str, ...]


class _PerLane(FileModel):
    source: str
    GBps: dict[int, float]


class _Pcie(FileModel):
    source: str
    GBps: tuple[float, ...]
    intel_peer_overhead: float


class _Numa(FileModel):
    source: str
    GBps: float


class _Network(FileModel):
    source: str
    Gbps: tuple[float, ...]


class Plugin(FileModel):
    """A network plugin: latency of a hop, and on which GPUs writes are ordered.

    Where 128-byte writes are not kept in order, only the Simple protocol is safe.
    """

    latency_us: dict[int, float]
    since: str
    ordered_from: int
    source: str

    def keeps_order(self, capability: int, release: tuple[float, ...]) -> bool:
        """Whether a release may use LL and LL128 between hosts."""
        return capability >= self.ordered_from or self._is_newer_than(release)

    def _is_newer_than(self, release: tuple[float, ...]) -> bool:
        return release < tuple(int(part) for part in self.since.split("."))

    def stated_us(self, capability: int, release: tuple[float, ...]) -> float:
        """Latency of a hop that a release reports for a GPU; microseconds."""
        if self._is_newer_than(release):
            return 0.0
        listed = [at for at in self.latency_us if at <= capability]
        return self.latency_us[max(listed, default=min(self.latency_us))]


class _Channels(FileModel):
    source: str
    most: int
    most_before: dict[str, int]
    most_heads: int


class Speeds(FileModel):
    """Speeds that the search of channels tries, by compute capability; GB/s."""

    source: str
    up_to_sm8x: tuple[float, ...]
    sm90: tuple[float, ...]
    sm100: tuple[float, ...]

    def of(self, capability: int) -> tuple[float, ...]:
        """Speeds for a GPU, from fast to slow."""
        if capability >= 100:
            return self.sm100
        return self.sm90 if capability >= 90 else self.up_to_sm8x


class Hardware(FileModel):
    """What NCCL takes hardware to be capable of (``hardware.yaml``)."""

    perfmodel: int
    sources: dict[str, str]
    compute_capability: _Capability
    nvlink_per_lane: _PerLane
    pcie: _Pcie
    between_amd_numa: _Numa
    network: _Network
    plugins: dict[str, Plugin]
    channels: _Channels
    speeds_within_host: Speeds
    speeds_between_hosts: Speeds


@cache
def hardware() -> Hardware:
    """NCCL's table of hardware."""
    return load_document(Hardware, Path(__file__).with_name("hardware.yaml"))
