"""One colour per kind of work, the same in every figure (Okabe and Ito's colour-blind-safe set)."""

from __future__ import annotations

from collections.abc import Mapping

INK = "#1b2430"
QUIET_INK = "#5b6775"
RULE = "#e3e7ec"
WAIT_INK = "#b0490b"
"""Text about exposed communication: its own colour is too pale to read on white."""
LIMIT_INK = "#b8123f"
"""What limits a step in the picture of a machine: no shade of how busy a link is."""

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'

WORK: Mapping[str, str] = {
    "forward": "#56b4e9",
    "backward": "#0072b2",
    "copies": "#cc79a7",
    "optimizer": "#009e73",
    "slowdown": "#94a7c9",
    "communication": "#e69f00",
    "exposed communication": "#d55e00",
    "bubble": "#a08bc0",
    "idle": "#d5dae0",
    "host": "#7d8794",
}
"""Colour per part of a step. Kinds of spans map onto it by `work_of`."""

_SPAN_KINDS = {"copy": "copies", "issue": "host", "wait": "host"}

MEMORY: Mapping[str, str] = {
    "parameters": "#24476b",
    "gradients": "#4f7ca8",
    "optimizer states": "#86aed0",
    "buckets": "#e69f00",
    "activations": "#b9c4cf",
    "gathered units": "#c98500",
    "temporary": "#dfe4e8",
}
"""Colour per part of a GPU's memory; buckets share the colour of communication."""

CYCLE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7d8794")
"""For lines and marks that no other colour belongs to; again from the first one on if more."""

UTILISATION: tuple[tuple[float, str, str], ...] = (
    (0.0, "#cfd6dd", "unused"),
    (0.10, "#f0b04a", "up to 10 %"),
    (0.25, "#d98213", "10 to 25 %"),
    (0.50, "#b4520a", "25 to 50 %"),
    (1.0, "#6b2203", "over 50 %"),
)
"""Upper end of a band of utilisation, its colour and its name in the legend."""

LINKS: Mapping[str, tuple[str, str]] = {
    "nvlink": ("#009e73", "NVLink"),
    "c2c": ("#56b4e9", "C2C"),
    "pcie": ("#8a94a0", "PCIe"),
    "upi": ("#cc79a7", "CPU to CPU"),
    "memory": ("#e69f00", "host memory"),
    "ethernet": ("#0072b2", "Ethernet"),
    "infiniband": ("#d55e00", "InfiniBand"),
}
"""Colour (where no traffic is shown) and name of each kind of link."""

NODES: Mapping[str, tuple[str, str, int, str]] = {
    "gpu": ("#2b3a4d", "square", 18, "GPU"),
    "nvswitch": ("#00795a", "diamond", 20, "NVSwitch"),
    "pcie_switch": ("#66717d", "diamond", 20, "PCIe switch"),
    "cpu": ("#66717d", "square", 18, "CPU"),
    "memory": ("#b3500b", "circle", 18, "host memory"),
    "nic": ("#0072b2", "circle", 17, "NIC"),
    "switch": ("#004a75", "hexagon", 20, "network switch"),
}
"""Colour, plotly marker, diameter in pixels and name of each kind of device."""

DARK: Mapping[str, str] = {
    INK: "#e4e9ef",
    QUIET_INK: "#a3aebb",
    RULE: "#333d48",
    WAIT_INK: "#f2935a",
    LIMIT_INK: "#ff7d9b",
    "#d5dae0": "#46505c",
    "#24476b": "#3568a0",
    "#4f7ca8": "#6795c2",
    "#86aed0": "#a5c6e2",
    "#b9c4cf": "#667381",
    "#cfd6dd": "#3b4550",
    "#f0b04a": "#8f5f17",
    "#d98213": "#c07a1d",
    "#b4520a": "#f0a440",
    "#6b2203": "#ffdca8",
    "#2b3a4d": "#4d6076",
    "#004a75": "#2273a8",
}
"""What takes a colour's place on a dark page; the others are seen on white and on black."""


def channels(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of ``"#rrggbb"``, 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def work_of(kind: str) -> str:
    """Part of a step that a span of this kind belongs to."""
    name = _SPAN_KINDS.get(kind, kind)
    return name if name in WORK else "host"


def band_of(utilisation: float) -> int:
    """Index of the band in `UTILISATION` that a utilisation falls into."""
    within = (at for at, (upper, *_) in enumerate(UTILISATION) if utilisation <= upper + 1e-12)
    return next(within, len(UTILISATION) - 1)
