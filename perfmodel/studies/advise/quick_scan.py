"""Values of a strategy's own settings that are worth simulating in full: the best of a few steps.

One settled step each, without intervals and limits, on the machine that was prepared once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.scenario import change_scenario
from perfmodel.studies.advise.model import Proposed
from perfmodel.studies.run.prepared import PreparedSize
from perfmodel.training.strategies import STRATEGIES

CAPS_MIB = (1, 5, 10, 50, 100, 200, 400)
"""Bucket caps around PyTorch's 25 MiB that are tried; `perfmodel tune` looks at every one."""
LEAST = 0.002
"""Share of the step that a setting has to save to be simulated in full."""


def scan_settings(prepared: PreparedSize) -> Iterator[Proposed]:
    """Yield the best value of each setting of the strategy that saves something."""
    scenario = prepared.job.scenario
    row = STRATEGIES[scenario.strategy.kind]
    if prepared.size.gpus < 2 or row.loops is not None:
        return
    now_s = prepared.step().step_time_s
    if row.has_buckets:
        caps: list[Any] = [f"{cap} MiB" for cap in CAPS_MIB]
        best = _best(prepared, "bucket_cap", caps, now_s)
        if best is not None:
            fields = {
                "strategy.bucket_cap": best,
                "strategy.bucket_caps": None,
                "strategy.first_bucket": None,
            }
            yield Proposed(f"buckets of {best}", fields, "buckets", is_plural=True)
    for setting in row.settings(prepared.job.workload, scenario.strategy) if row.settings else ():
        values = [_written(value, setting.unit) for value in setting.values]
        best = _best(prepared, setting.field, values, now_s)
        if best is not None:
            text = f"{setting.field} {str(best).lower() if isinstance(best, bool) else best}"
            yield Proposed(text, {f"strategy.{setting.field}": best}, setting.field)


def _written(value: Any, unit: str | None) -> Any:
    """A value as a file has it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or unit == "elements":
        return value
    if unit == "seconds":
        return f"{value * 1e3:.12g} ms"
    return f"{value / 2**20:.12g} MiB" if unit == "bytes" else value


def _best(prepared: PreparedSize, name: str, values: Sequence[Any], now_s: float) -> Any:
    """Return the value with the shortest step, if it saves something; else None."""
    scenario, shortest_s, best = prepared.job.scenario, now_s * (1.0 - LEAST), None
    clear = {"strategy.bucket_caps": None, "strategy.first_bucket": None}
    for value in values:
        fields = {f"strategy.{name}": value}
        try:
            changed = change_scenario(scenario, fields | (clear if name == "bucket_cap" else {}))
            step_s = prepared.step(prepared.job.strategy.options(changed.strategy)).step_time_s
        except PerfmodelError:
            continue  # a value that does not go with the others
        if step_s < shortest_s:
            shortest_s, best = step_s, value
    return best
