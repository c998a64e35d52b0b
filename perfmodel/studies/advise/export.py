"""Advice as plain data: the document that ``perfmodel advise --json`` prints, and rows.

Keys are a contract that other programs rely on: they are added to, never renamed.
"""

from __future__ import annotations

from typing import Any

from perfmodel.files import as_json, attributes
from perfmodel.scenario import scenario_digest
from perfmodel.scenario.sections.plan import Money
from perfmodel.studies.advise.model import Advice, Trial, joined_fields
from perfmodel.studies.run.result.model import SizeResult


def to_json(advice: Advice) -> dict[str, Any]:
    """Write advice as plain data; times in seconds, sizes in bytes, gains as ratios."""
    document = {
        "scenario": advice.scenario.name,
        "scenario_sha256": scenario_digest(advice.scenario),
        **attributes(advice, "workload machine"),
        "samples": str(advice.samples),
        **attributes(advice, "adapter_Bps adapters"),
        "base": _point(advice.base),
        "changes": [_trial(trial, advice) for trial in advice.trials],
        "together": [_trial(trial, advice) for trial in advice.together],
        "power_limits": [
            _trial(trial, advice) | {"energy_ratio": advice.energy_ratio(trial)}
            for trial in advice.power
        ],
        "does_not_fit": [_trial(trial, advice) for trial in advice.too_big],
        "refused": [
            {
                "change": trial.text,
                "fields": joined_fields(trial.changes),
                "message": trial.message,
            }
            for trial in advice.refused
        ],
        "hourly": _money(advice.hourly),
        **attributes(advice, "simulated provenance"),
    }
    return dict(as_json(document, "advice"))


def _money(money: Money | None) -> dict[str, Any] | None:
    return None if money is None else attributes(money, "amount currency")


def _point(point: SizeResult) -> dict[str, Any]:
    return {
        **attributes(
            point,
            "gpus global_batch step_time_s interval_s samples_per_s exposed_comm_s bottleneck "
            "bottleneck_path mfu",
        ),
        "memory_bytes": point.memory.total_bytes,
        "fits": point.memory.fits,
        "reliefs": [attributes(each, "what parts saves_s") for each in point.reliefs],
    }


def _trial(trial: Trial, advice: Advice) -> dict[str, Any]:
    gain, base = trial.gain, advice.base.memory.total_bytes
    return {
        "change": trial.text,
        "fields": joined_fields(trial.changes),
        "about": [change.about for change in trial.changes],
        "touches": trial.touches,
        "notes": [change.note for change in trial.changes if change.note],
        "gain": None if gain is None else gain.ratio,
        "gain_interval": None if gain is None else gain.interval,
        "sure": trial.sure,
        "saves": trial.saves if gain is not None else None,
        "memory_bytes": None if trial.memory is None else trial.memory.total_bytes,
        "more_memory_bytes": None if trial.memory is None else trial.memory.total_bytes - base,
        "prices": [_money(change.price) for change in trial.changes if change.price],
        "rents": [_money(change.rent) for change in trial.changes if change.rent],
        "point": None if trial.point is None else _point(trial.point),
    }


def advice_rows(advice: Advice) -> list[dict[str, Any]]:
    """One row per change and proposal that runs, with the interval of its gain."""
    rows = []
    for kind, trials in (("alone", advice.trials), ("together", advice.together)):
        for trial in trials:
            assert trial.point is not None
            assert trial.gain is not None
            low, high = trial.gain.interval or (None, None)
            rows.append(
                {
                    "change": trial.text,
                    "kind": kind,
                    "gain": trial.ratio,
                    "gain_low": low,
                    "gain_high": high,
                    "sure": trial.sure,
                    "touches": trial.touches,
                    "step_time_s": trial.point.step_time_s,
                    "samples_per_s": trial.point.samples_per_s,
                    "memory_bytes": trial.point.memory.total_bytes,
                    "bottleneck": trial.point.bottleneck or None,
                }
            )
    return rows
