"""Errors by kind of machine, and on the sweeps that every mode predicts."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.validate.forecast import Mode
from perfmodel.validate.scores import LARGE, MODES, DataPoint, Score, by_band, in_band, score


def by_machine(points: Sequence[DataPoint]) -> dict[str, dict[Mode, dict[str, Score]]]:
    """Score the counted points by kind of machine, mode, and below or from 256 KiB on."""
    table: dict[str, dict[Mode, dict[str, Score]]] = {}
    for machine in sorted({point.machine for point in points}):
        for mode in MODES:
            own = [p for p in points if p.machine == machine and p.mode == mode and p.counted]
            for band in ("latency", LARGE):
                scored = score(in_band(own, band))
                if scored is not None:
                    table.setdefault(machine, {}).setdefault(mode, {})[band] = scored
    return table


def on_common(points: Sequence[DataPoint]) -> dict[Mode, dict[str, Score]]:
    """Score every mode on the sweeps that the mode with the fewest covers, for a fair comparison.

    The modes are those that any counted sweep has.
    """
    counted = [p for p in points if p.counted]
    modes = [mode for mode in MODES if any(p.mode == mode for p in counted)]
    if not modes:
        return {}
    common = set.intersection(*({p.sweep for p in counted if p.mode == mode} for mode in modes))
    return by_band([p for p in counted if p.sweep in common])
