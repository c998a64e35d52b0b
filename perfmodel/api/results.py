"""Results that show themselves: those of studies, with figures, pages and tables.

Each is the study's result and nothing more, so that whatever takes that takes these. Reports are
imported when they are asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from perfmodel.errors import Fault, InputError, allowed_names, refuse_if
from perfmodel.files import attributes
from perfmodel.memo import T
from perfmodel.studies.advise.model import Advice
from perfmodel.studies.comparison import Comparison
from perfmodel.studies.plan.model import PlanResult
from perfmodel.studies.run.result import Result
from perfmodel.studies.sweep.run import SweepResult
from perfmodel.studies.tune.model import TuneResult
from perfmodel.studies.tune.settings_search import SettingsTuning

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from perfmodel.report.common.document import Block
    from perfmodel.validate.diagnose import Diagnosis


RunFigure = Literal["scaling", "efficiency", "step", "breakdown", "timeline", "memory", "topology"]
"""Figures of `RunResult.plot`."""


def showing(kind: type[T], result: Any) -> T:
    """Return a study's result as the kind that shows itself."""
    return kind(**{each.name: getattr(result, each.name) for each in fields(result)})


def _place(path: object) -> Path:
    if not isinstance(path, str | Path):
        raise InputError(Fault("path", f"a {type(path).__name__}", "text or a Path"))
    return Path(path)


def _text(blocks: Iterable[Block]) -> str:
    from perfmodel.report.common.plain_text import plain_lines

    return "\n".join(plain_lines(blocks)).replace("\N{NO-BREAK SPACE}", " ")


class Views(NamedTuple):
    """How a result shows itself: each a function of the result, but the title."""

    title: str
    headline: Callable[[Any], str]
    lines: Callable[[Any], Sequence[Block]]
    page: Callable[[Any], str]
    figure: Callable[[Any], go.Figure]
    document: Callable[[Any], dict[str, Any]]
    rows: Callable[[Any], Iterable[dict[str, Any]]] = list


class Shown:
    """A result that shows itself: a figure, a page, and in a notebook."""

    @abstractmethod
    def _views(self) -> Views:
        """Say with which functions of `report` this result shows itself."""

    def plot(self) -> go.Figure:
        """Draw the answer, as the first figure of the page."""
        return self._views().figure(self)

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write the report, one page that works offline; without a path, return it."""
        page = self._views().page(self)
        if path is None:
            return page
        from perfmodel.files import write_atomically

        write_atomically(_place(path), page)
        return Path(path)

    def to_json(self) -> dict[str, Any]:
        """Return the document that the command prints with ``--json``."""
        return self._views().document(self)

    def to_frame(self) -> pd.DataFrame:
        """Return a table, with 80 % intervals where the answer has them."""
        import pandas as pd

        return pd.DataFrame(self._views().rows(self))

    def to_text(self) -> str:
        """Return the lines that the command prints, a table as text."""
        return _text(self._views().lines(self))

    def __repr__(self) -> str:
        title, headline, *_ = self._views()
        words = headline(self).replace("\N{NO-BREAK SPACE}", " ").split()
        return f"<{title}: {' '.join(words)}>"

    def _repr_html_(self) -> str:
        """Show the answer in a notebook, which has a style of its own."""
        from html import escape

        from perfmodel.report.common.document import Paragraph
        from perfmodel.report.common.html import render_block

        return "\n".join(
            f"<p><strong>{escape(block.text)}</strong></p>"
            if isinstance(block, Paragraph) and block.role == "headline"
            else render_block(block)
            for block in self._views().lines(self)
        )


class RunResult(Shown, Result):
    """Result of one scenario (`perfmodel.run`).

    Examples
    --------
    >>> import perfmodel as pm
    >>> result = pm.run("resnet50-dgx-a100", scale=None, cluster__nodes=1)
    >>> result.to_frame()[["gpus", "bottleneck"]].to_dict("records")
    [{'gpus': 8, 'bottleneck': 'compute'}]
    """

    def _views(self) -> Views:
        from perfmodel.report.common import quantities
        from perfmodel.report.run.page import report_html
        from perfmodel.report.run.text import result_lines, to_json

        return Views(
            f"Result of {self.scenario}",
            quantities.headline,
            result_lines,
            report_html,
            RunResult.plot,
            to_json,
        )

    def plot(self, kind: RunFigure | None = None) -> go.Figure:
        """Draw the curve of throughput, or where there is one size the timeline of its step.

        `kind`: another figure: "scaling", "efficiency", "step", "breakdown", "timeline", "memory"
            or "topology".
        """
        from perfmodel.report.common.figures import draw_breakdown, draw_memory
        from perfmodel.report.run.scaling import (
            draw_efficiency,
            draw_step_time,
            draw_throughput,
        )
        from perfmodel.report.run.timeline import draw_timeline
        from perfmodel.report.topology_figure import draw_topology

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
        refuse_if(name not in drawings, "kind", repr(name), allowed_names(drawings, str(name)))
        return drawings[name]()

    def to_perfetto(self, path: str | Path) -> Path:
        """Write the timeline of a step for ui.perfetto.dev; compressed with a name in ``.gz``."""
        from perfmodel.report.run.page import write_timeline

        place = _place(path)
        write_timeline(self, place)
        return place

    def to_frame(self) -> pd.DataFrame:
        """One row per cluster size, with 80 % intervals; units in the column names."""
        table = self.summary
        at = list(table.columns).index("step_time_s")
        steps = [point.interval_s or (None, None) for point in self.points]
        ends = [point.scaling_efficiency_interval or (None, None) for point in self.points]
        table.insert(at + 1, "low_s", [low for low, _ in steps])
        table.insert(at + 2, "high_s", [high for _, high in steps])
        table["scaling_efficiency_low"] = [low for low, _ in ends]
        table["scaling_efficiency_high"] = [high for _, high in ends]
        table["mfu"] = [point.mfu for point in self.points]
        return table


class BucketTuning(Shown, TuneResult):
    """The best gradient buckets of a scenario (`perfmodel.tune`), drawn over the bucket cap.

    Its table has one row per range of caps that make the same buckets; regrets against the best.
    """

    def _views(self) -> Views:
        from perfmodel.report import tuning_text
        from perfmodel.report.tuning import draw_curve, tuned_html

        return Views(
            f"Buckets of {self.scenario.name}",
            tuning_text.headline,
            tuning_text.tuned_lines,
            tuned_html,
            draw_curve,
            tuning_text.tuned_json,
            lambda tuned: (
                {
                    **attributes(
                        point,
                        "bucket_cap_mb low_mb high_mb buckets step_time_s exposed_comm_s simulated",
                    ),
                    "regret": point.regrets[0],
                    "worst_regret": point.worst_regret,
                }
                for point in tuned.curve
            ),
        )


class StrategyTuning(Shown, SettingsTuning):
    """The best settings of a strategy without DDP's buckets (`perfmodel.tune`).

    Drawn: the step of each choice that was simulated, the shortest first. The table has one row per
    choice that was tried; settings that are the library's defaults are empty.
    """

    def _views(self) -> Views:
        from perfmodel.report import tuned_settings

        return Views(
            f"Settings of {self.scenario.name}",
            tuned_settings.settings_headline,
            tuned_settings.settings_lines,
            tuned_settings.settings_html,
            tuned_settings.draw_trials,
            tuned_settings.settings_json,
            lambda tuned: (
                {
                    **{name: dict(trial.values).get(name) for name in tuned.fields},
                    **attributes(trial, "step_time_s exposed_comm_s memory_bytes fits"),
                }
                for trial in tuned.trials
            ),
        )


class ComparisonResult(Shown, Comparison):
    """Scenarios side by side (`perfmodel.compare`); drawn: the parts of each side's step."""

    def _views(self) -> Views:
        from perfmodel.report import comparison
        from perfmodel.report.comparison_text import headline
        from perfmodel.studies.comparison import to_json

        return Views(
            f"Comparison of {len(self.sides)}",
            headline,
            comparison.comparison_lines,
            comparison.comparison_html,
            comparison.draw_steps,
            to_json,
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per side, with its 80 % interval and the fields that differ."""
        import pandas as pd

        from perfmodel.studies.comparison import csv_rows

        return pd.DataFrame(csv_rows(self)).set_index("label")


class Plan(Shown, PlanResult):
    """Candidate clusters for a target (`perfmodel.plan`); drawn: cost against time to train."""

    def _views(self) -> Views:
        from perfmodel.report import plan
        from perfmodel.report.plan_figures import draw_time_against_cost
        from perfmodel.report.plan_text import headline
        from perfmodel.studies.plan.export import csv_rows, to_json

        return Views(
            f"Plan of {self.scenario}",
            headline,
            plan.plan_lines,
            plan.plan_html,
            draw_time_against_cost,
            to_json,
            csv_rows,
        )


class Sweep(Shown, SweepResult):
    """Variants of a scenario (`perfmodel.sweep`).

    Drawn: throughput along the field that has numbers, else the steps of the quickest.
    """

    def _views(self) -> Views:
        from perfmodel.report import sweep
        from perfmodel.studies.sweep.run import to_json

        bases = (each.scenario for each in self.variants if each.scenario)
        asked = next(((each.name, each.question) for each in bases), ("", ""))
        return Views(
            "Sweep",
            sweep.headline,
            sweep.sweep_lines,
            sweep.sweep_html,
            sweep.draw_sweep,
            partial(to_json, *asked),
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per variant, with its 80 % interval (low_s, high_s)."""
        return self.table


class AdviceResult(Shown, Advice):
    """What to change in a scenario (`perfmodel.advise`), each drawn with its interval."""

    def _views(self) -> Views:
        from perfmodel.report import advice
        from perfmodel.studies.advise.model import advice_rows, to_json

        return Views(
            f"Advice on {self.scenario.name}",
            advice.headline,
            advice.advice_lines,
            advice.advice_html,
            advice.draw_gains,
            to_json,
            advice_rows,
        )


class Diagnoses(list["Diagnosis"]):
    """What is said of each table of a log (`perfmodel.diagnose`)."""

    def to_json(self) -> dict[str, Any]:
        """Return the document that the command prints with ``--json``."""
        from perfmodel.report.diagnosis import diagnosis_json

        return diagnosis_json(self)

    def to_text(self) -> str:
        """Return the lines that the command prints."""
        from perfmodel.report.diagnosis import diagnosis_lines

        return _text(diagnosis_lines(self))


class CollectiveTimes(Shown, list[dict[str, Any]]):
    """Times of one collective by size (`perfmodel.collective`): a list of rows.

    `title`: operation and machine. `notes`: remarks about the routing and the profile.
    """

    def __init__(
        self, rows: Sequence[dict[str, Any]], title: str = "", notes: Sequence[str] = ()
    ) -> None:
        super().__init__(rows)
        self.title = title
        self.notes = tuple(notes)

    def _views(self) -> Views:
        from perfmodel.report import collective

        by = " and ".join(dict.fromkeys(str(row["algorithm"]) for row in self))
        several = f" (best of {len(self)} sizes)" if len(self) > 1 else ""
        return Views(
            title="Collective",
            headline=lambda rows: f"{self.title} by {by}: {collective.headline(rows)}{several}",
            lines=lambda rows: collective.collective_lines(self.title, rows, self.notes),
            page=lambda rows: collective.collective_html(self.title, rows, self.notes),
            figure=collective.draw_busbw,
            document=lambda rows: {"rows": list(rows), "notes": list(self.notes)},
        )

    def __repr__(self) -> str:
        return super().__repr__() if self else "[]"

    def to_frame(self) -> pd.DataFrame:
        """One row per size, with the 80 % interval of the time (low_s, high_s)."""
        import pandas as pd

        rows = (
            row | dict(zip(("low_s", "high_s"), row["interval_s"] or (None, None), strict=True))
            for row in self
        )
        return pd.DataFrame(rows).drop(columns="interval_s")
