"""Results that show themselves: those of studies, with figures, pages and tables.

Each is the study's result and nothing more, so that whatever takes that takes these. Reports are
imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.studies.advise.model import Advice
from perfmodel.studies.compare.model import Comparison
from perfmodel.studies.plan.model import PlanResult
from perfmodel.studies.run.result.model import Result
from perfmodel.studies.sweep.run import SweepResult
from perfmodel.studies.tune.model import TuneResult
from perfmodel.studies.tune.settings_search import SettingsTuning

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from perfmodel.report.common.document import Block

T = TypeVar("T")

RunFigure = Literal["scaling", "efficiency", "step", "breakdown", "timeline", "memory", "topology"]
"""Figures of `RunResult.plot`."""


def showing(kind: type[T], result: Any) -> T:
    """Return a study's result as the kind that shows itself."""
    return kind(**{each.name: getattr(result, each.name) for each in fields(result)})


def _page(html: str, path: str | Path | None) -> str | Path:
    """Write a page and return its path, or return the page where there is no path."""
    if path is None:
        return html
    from perfmodel.files import write_atomically

    place = _place(path)
    write_atomically(place, html)
    return place


def _place(path: object) -> Path:
    if not isinstance(path, str | Path):
        raise InputError(Fault("path", f"a {type(path).__name__}", "text or a Path"))
    return Path(path)


def _notebook(blocks: Sequence[Block]) -> str:
    """Write blocks as HTML for a notebook, which has a style of its own."""
    from html import escape

    from perfmodel.report.common.document import Paragraph
    from perfmodel.report.common.html import render_block

    return "\n".join(
        f"<p><strong>{escape(block.text)}</strong></p>"
        if isinstance(block, Paragraph) and block.role == "headline"
        else render_block(block)
        for block in blocks
    )


def _short(name: str, sentence: str) -> str:
    """Write a result in one line, for `repr`."""
    line = " ".join(sentence.replace("\N{NO-BREAK SPACE}", " ").split())
    return f"<{name}: {line}>"


class RunResult(Result):
    """Result of one scenario (`perfmodel.run`).

    Examples
    --------
    >>> import perfmodel as pm
    >>> result = pm.run("resnet50-dgx-a100", scale=None, cluster__nodes=1)
    >>> result.to_frame()[["gpus", "bottleneck"]].to_dict("records")
    [{'gpus': 8, 'bottleneck': 'compute'}]
    """

    __slots__ = ()

    def plot(self, kind: RunFigure | None = None) -> go.Figure:
        """Draw the curve of throughput, or where there is one size the timeline of its step.

        `kind`: another figure: "scaling", "efficiency", "step", "breakdown", "timeline", "memory"
            or "topology".
        """
        from perfmodel.report.common.figures import draw_breakdown, draw_memory
        from perfmodel.report.run.drawings.timeline_figure import draw_timeline
        from perfmodel.report.scaling.figures import (
            draw_efficiency,
            draw_step_time,
            draw_throughput,
        )
        from perfmodel.report.topology.figure import draw_topology

        drawings: dict[str, Callable[[], go.Figure]] = {
            "scaling": lambda: draw_throughput(self),
            "efficiency": lambda: draw_efficiency(self),
            "step": lambda: draw_step_time(self),
            "breakdown": lambda: draw_breakdown(self),
            "timeline": lambda: draw_timeline(self.main),
            "memory": lambda: draw_memory(self.main.memory),
            "topology": lambda: draw_topology(self.topology, self.main),
        }
        name = kind or ("scaling" if len(self.points) > 1 else "timeline")
        if name not in drawings:
            raise InputError(Fault("kind", repr(name), allowed_names(drawings, str(name))))
        return drawings[name]()

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write the report, one page that works offline; without a path, return it."""
        from perfmodel.report.run.page import report_html

        return _page(report_html(self), path)

    def to_perfetto(self, path: str | Path) -> Path:
        """Write the timeline of a step for ui.perfetto.dev; compressed with a name in ``.gz``."""
        from perfmodel.report.run.kineto.profiler_trace import write_kineto

        place = _place(path)
        write_kineto(
            self.timeline,
            place,
            world_size=self.main.gpus,
            backend=self.provenance.get("backend", "nccl"),
            gpu=self.topology.gpu.name,
        )
        return place

    def to_frame(self) -> pd.DataFrame:
        """One row per cluster size, with 80 % intervals; units in the column names."""
        table = self.summary
        at = table.columns.get_loc("step_time_s")
        steps = [point.interval_s or (None, None) for point in self.points]
        ends = [point.scaling_efficiency_interval or (None, None) for point in self.points]
        assert isinstance(at, int)
        table.insert(at + 1, "low_s", [low for low, _ in steps])
        table.insert(at + 2, "high_s", [high for _, high in steps])
        table["scaling_efficiency_low"] = [low for low, _ in ends]
        table["scaling_efficiency_high"] = [high for _, high in ends]
        table["mfu"] = [point.mfu for point in self.points]
        return table

    def __repr__(self) -> str:
        from perfmodel.report.common.quantities import headline

        return _short(f"Result of {self.scenario}", headline(self))

    def _repr_html_(self) -> str:
        """Show the answer in a notebook."""
        from perfmodel.report.run.text import result_lines

        return _notebook(result_lines(self))


class BucketTuning(TuneResult):
    """The best gradient buckets of a scenario (`perfmodel.tune`)."""

    def plot(self) -> go.Figure:
        """Draw the step over the bucket cap."""
        from perfmodel.report.tuning.figures import draw_curve

        return draw_curve(self)

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write the page; without a path, return it."""
        from perfmodel.report.tuning.page import tuned_html

        return _page(tuned_html(self), path)

    def to_frame(self) -> pd.DataFrame:
        """One row per range of caps that make the same buckets; regrets against the best cap."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "bucket_cap_mb": point.bucket_cap_mb,
                    "low_mb": point.low_mb,
                    "high_mb": point.high_mb,
                    "buckets": point.buckets,
                    "step_time_s": point.step_time_s,
                    "exposed_comm_s": point.exposed_comm_s,
                    "simulated": point.simulated,
                    "regret": point.regrets[0],
                    "worst_regret": point.worst_regret,
                }
                for point in self.curve
            ]
        )

    def __repr__(self) -> str:
        from perfmodel.report.tuning.text import headline

        return _short(f"Buckets of {self.scenario.name}", headline(self))

    def _repr_html_(self) -> str:
        """Show the answer in a notebook."""
        from perfmodel.report.tuning.text import tuned_lines

        return _notebook(tuned_lines(self))


class StrategyTuning(SettingsTuning):
    """The best settings of a strategy without DDP's buckets (`perfmodel.tune`)."""

    def plot(self) -> go.Figure:
        """Draw the step of each choice that was simulated, the shortest first."""
        from perfmodel.report.tuning.settings import draw_trials

        return draw_trials(self)

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write the page; without a path, return it."""
        from perfmodel.report.tuning.settings import settings_html

        return _page(settings_html(self), path)

    def to_frame(self) -> pd.DataFrame:
        """One row per choice that was tried; settings that are the library's defaults are empty."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    **{name: dict(trial.values).get(name) for name in self.fields},
                    "step_time_s": trial.step_time_s,
                    "exposed_comm_s": trial.exposed_comm_s,
                    "memory_bytes": trial.memory_bytes,
                    "fits": trial.fits,
                }
                for trial in self.trials
            ]
        )

    def __repr__(self) -> str:
        from perfmodel.report.tuning.settings import settings_headline

        return _short(f"Settings of {self.scenario.name}", settings_headline(self))

    def _repr_html_(self) -> str:
        """Show the answer in a notebook."""
        from perfmodel.report.tuning.settings import settings_lines

        return _notebook(settings_lines(self))


class ComparisonResult(Comparison):
    """Scenarios side by side (`perfmodel.compare`)."""

    __slots__ = ()

    def plot(self) -> go.Figure:
        """Draw the parts of each side's step."""
        from perfmodel.report.comparison.page import draw_steps

        return draw_steps(self)

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write the page; without a path, return it."""
        from perfmodel.report.comparison.page import comparison_html

        return _page(comparison_html(self), path)

    def to_frame(self) -> pd.DataFrame:
        """One row per side, with its 80 % interval and the fields that differ."""
        import pandas as pd

        from perfmodel.studies.compare.model import csv_rows

        return pd.DataFrame(csv_rows(self)).set_index("label")

    def __repr__(self) -> str:
        from perfmodel.report.comparison.text import headline

        return _short(f"Comparison of {len(self.sides)}", headline(self))

    def _repr_html_(self) -> str:
        """Show the answer in a notebook."""
        from perfmodel.report.comparison.tables import comparison_lines

        return _notebook(comparison_lines(self))


class Plan(PlanResult):
    """Candidate clusters for a target (`perfmodel.plan`)."""

    __slots__ = ()

    def plot(self) -> go.Figure:
        """Draw cost against time to train."""
        from perfmodel.report.planning.figures import draw_time_against_cost

        return draw_time_against_cost(self)

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write the page; without a path, return it."""
        from perfmodel.report.planning.page import plan_html

        return _page(plan_html(self), path)

    def to_frame(self) -> pd.DataFrame:
        """One row per option, with 80 % intervals."""
        import pandas as pd

        from perfmodel.studies.plan.export import csv_rows

        return pd.DataFrame(csv_rows(self))

    def __repr__(self) -> str:
        from perfmodel.report.planning.text import headline

        return _short(f"Plan of {self.scenario}", headline(self))

    def _repr_html_(self) -> str:
        """Show the answer in a notebook."""
        from perfmodel.report.planning.page import plan_lines

        return _notebook(plan_lines(self))


class Sweep(SweepResult):
    """Variants of a scenario (`perfmodel.sweep`)."""

    __slots__ = ()

    def plot(self) -> go.Figure:
        """Draw throughput along the field that has numbers, else the steps of the quickest."""
        from perfmodel.report.sweeping.figures import draw_sweep

        return draw_sweep(self)

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write a page; without a path, return it."""
        from perfmodel.report.sweeping.page import sweep_html

        return _page(sweep_html(self), path)

    def to_frame(self) -> pd.DataFrame:
        """One row per variant, with its 80 % interval (low_s, high_s)."""
        return self.table

    def __repr__(self) -> str:
        from perfmodel.report.sweeping.text import headline

        return _short("Sweep", headline(self))

    def _repr_html_(self) -> str:
        """Show the variants in a notebook."""
        from perfmodel.report.sweeping.page import sweep_lines

        return _notebook(sweep_lines(self))


class AdviceResult(Advice):
    """What to change in a scenario (`perfmodel.advise`)."""

    __slots__ = ()

    def plot(self) -> go.Figure:
        """Draw the gain of each change with its interval."""
        from perfmodel.report.advice.figures import draw_gains

        return draw_gains(self)

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write the page; without a path, return it."""
        from perfmodel.report.advice.page import advice_html

        return _page(advice_html(self), path)

    def to_frame(self) -> pd.DataFrame:
        """One row per change, with the 80 % interval of its gain."""
        import pandas as pd

        from perfmodel.studies.advise.model import advice_rows

        return pd.DataFrame(advice_rows(self))

    def __repr__(self) -> str:
        from perfmodel.report.advice.text import headline

        return _short(f"Advice on {self.scenario.name}", headline(self))

    def _repr_html_(self) -> str:
        """Show the answer in a notebook."""
        from perfmodel.report.advice.text import advice_lines

        return _notebook(advice_lines(self))


class CollectiveTimes(list[dict[str, Any]]):
    """Times of one collective by size (`perfmodel.collective`): a list of rows.

    `title`: operation and machine. `notes`: remarks about the routing and the profile.
    """

    def __init__(
        self, rows: Sequence[dict[str, Any]], title: str = "", notes: Sequence[str] = ()
    ) -> None:
        super().__init__(rows)
        self.title = title
        self.notes = tuple(notes)

    def plot(self) -> go.Figure:
        """Draw the bus bandwidth over the size."""
        from perfmodel.report.collectives.figures import draw_busbw

        return draw_busbw(self)

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write a page; without a path, return it."""
        from perfmodel.report.collectives.page import collective_html

        return _page(collective_html(self.title, self, self.notes), path)

    def to_frame(self) -> pd.DataFrame:
        """One row per size, with the 80 % interval of the time (low_s, high_s)."""
        import pandas as pd

        rows = [
            {
                **row,
                "low_s": (row["interval_s"] or (None, None))[0],
                "high_s": (row["interval_s"] or (None, None))[1],
            }
            for row in self
        ]
        return pd.DataFrame(rows).drop(columns="interval_s")

    def __repr__(self) -> str:
        from perfmodel.report.collectives.page import headline

        if not self:
            return "[]"
        by = " and ".join(dict.fromkeys(str(row["algorithm"]) for row in self))
        several = f" (best of {len(self)} sizes)" if len(self) > 1 else ""
        return _short("Collective", f"{self.title} by {by}: {headline(self)}{several}")

    def _repr_html_(self) -> str:
        """Show the rows in a notebook."""
        from perfmodel.report.collectives.page import collective_lines

        return _notebook(collective_lines(self.title, self, self.notes))
