"""A table of the ways between the devices of a host."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Matrix:
    """Devices of one host and the way between each two.

    Parameters
    ----------
    devices : tuple of str
        As the tool names them, GPUs first.
    cells : dict of (str, str) to str
        "NV2", "PIX", "PXB", "PHB", "NODE", "SYS"; both directions.
    numa : dict of str to str
        NUMA domain of a GPU, where the table says.
    legend : dict of str to str
        Names of NICs.
    lines : dict of str to int
        Line of a device's row.
    gpu : str or None
        Model, where the text says.
    notes : tuple of str
        What was odd.
    pcie : dict of str to (int, int)
        Generation and lanes of a GPU's PCIe link, where they are known.
    ports : dict of str to (str, float, str)
        Kind of network, rate in bytes per second and its source, where they are known.
    """

    devices: tuple[str, ...]
    cells: dict[tuple[str, str], str]
    numa: dict[str, str] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    gpu: str | None = None
    notes: tuple[str, ...] = ()
    pcie: dict[str, tuple[int, int]] = field(default_factory=dict)
    ports: dict[str, tuple[str, float, str]] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs, in order."""
        return tuple(name for name in self.devices if re.fullmatch(r"GPU\d+", name))

    @property
    def nics(self) -> tuple[str, ...]:
        """All else: NICs."""
        return tuple(name for name in self.devices if name not in self.gpus)
