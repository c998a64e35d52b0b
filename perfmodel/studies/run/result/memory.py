"""Bytes per GPU, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes per GPU (the fullest one), and whether they fit.

    `low_bytes`, `high_bytes`: least and most of all parts together, where activations are
        estimated; None: they are counted.
    `reserve_bytes`: what CUDA, NCCL and the allocator take beside.
    `idle_bytes`: part of it that the allocator keeps for the streams of communication.
    `host_bytes`, `drive_bytes`: what all GPUs of a host offload to its memory and to its drives.
    `host_capacity_bytes`, `drive_capacity_bytes`: of a host; None: not stated, so not checked.
    `stages_bytes`: all parts together, of a GPU of each stage of a pipeline; none without.
    `is_stated`: whether anything is known of it: not of a user's own strategy, whose parts are 0.
    """

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    buckets_bytes: float
    activations_bytes: float
    gathered_bytes: float
    capacity_bytes: float
    temporary_bytes: float = 0.0
    idle_bytes: float = 0.0
    stages_bytes: tuple[float, ...] = ()
    advice: tuple[str, ...] = ()
    low_bytes: float | None = None
    high_bytes: float | None = None
    reserve_bytes: float = 0.0
    host_bytes: float = 0.0
    drive_bytes: float = 0.0
    host_capacity_bytes: float | None = None
    drive_capacity_bytes: float | None = None
    is_stated: bool = True

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.buckets_bytes
            + self.activations_bytes
            + self.gathered_bytes
            + self.temporary_bytes
        )

    @property
    def fits(self) -> bool:
        """Whether the parts fit the device's memory, the high end of what is estimated too.

        What is offloaded has to fit the host.
        """
        return self.fits_gpu and self.fits_host

    @property
    def fits_gpu(self) -> bool:
        """Whether the parts fit the device's memory, the high end of what is estimated too."""
        return self._most_bytes <= self.capacity_bytes

    @property
    def fits_host(self) -> bool:
        """Whether what is offloaded fits the host's memory and drives, where these are known."""
        return not self.overfull

    @property
    def overfull(self) -> tuple[str, ...]:
        """What of the host is too small: "memory", "drives"."""
        checked = (
            ("memory", self.host_bytes, self.host_capacity_bytes),
            ("drives", self.drive_bytes, self.drive_capacity_bytes),
        )
        return tuple(name for name, needed, has in checked if has is not None and needed > has)

    @property
    def may_fit(self) -> bool:
        """Whether the parts fit at the low end of what is estimated."""
        least = self.total_bytes if self.low_bytes is None else self.low_bytes
        return least <= self.capacity_bytes and self.fits_host

    @property
    def tight(self) -> bool:
        """Whether the parts fit, but not with what CUDA, NCCL and the allocator take."""
        return self.fits and self._most_bytes + self.reserve_bytes > self.capacity_bytes

    @property
    def _most_bytes(self) -> float:
        return self.total_bytes if self.high_bytes is None else self.high_bytes


def unstated_memory(capacity_bytes: float) -> Memory:
    """Memory of a strategy that does not say what it keeps, on GPUs of so many bytes."""
    return Memory(
        parameters_bytes=0.0,
        gradients_bytes=0.0,
        optimizer_bytes=0.0,
        buckets_bytes=0.0,
        activations_bytes=0.0,
        gathered_bytes=0.0,
        capacity_bytes=capacity_bytes,
        is_stated=False,
    )
