"""Tuned settings of a strategy: terminal, JSON and page."""

from __future__ import annotations

from html import escape
from typing import Any

from perfmodel.files import as_json, attributes
from perfmodel.memo import first_applying
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    PREDICTION,
    Block,
    Code,
    Paragraph,
    Table,
    grounds,
    header,
    paragraphs,
    section,
    spelled,
    tabulate,
)
from perfmodel.report.common.figures import Drawing, stack_parts
from perfmodel.report.common.html import render_html
from perfmodel.report.common.palette import WORK
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet
from perfmodel.report.common.words import words_blocks, words_section
from perfmodel.report.tuning_text import change, fine
from perfmodel.studies.tune.settings_search import SettingsTuning, Trial
from perfmodel.units import format_bytes

MOST_BARS = 20
"""Choices that the figure shows."""
MOST_ROWS = 8
"""Choices that a table lists beside the default, the scenario's own and the best."""


def settings_headline(tuned: SettingsTuning) -> str:
    """State in one sentence what to set."""
    where = (
        f"{tuned.workload} with {tuned.strategy} on {quantities.gpus(tuned.gpus)} ({tuned.machine})"
    )
    if tuned.best is None:
        return f"{where}: none of {len(tuned.trials)} choices of settings fits the GPU's memory."
    step = fine(tuned.best.step_time_s or 0.0)
    if tuned.keep:
        return f"{where}: keep the defaults, no setting saves 1 % or more; a step takes {step}."
    better = first_applying(
        (not tuned.default.fits, "and the defaults do not fit"),
        (tuned.gain < 0, "more than with the defaults, which do not fit"),
        (True, f"{quantities.percent(tuned.gain)} less than with the defaults"),
    )
    return f"{where}: with {_listed(tuned.best)} a step takes {step}, {better}."


def _listed(trial: Trial) -> str:
    return ", ".join(f"{name} {_yaml(value)}" for name, value in trial.values.items()) or "default"


def _yaml(value: object) -> str:
    return first_applying(
        (value is None, "null"), (isinstance(value, bool), str(value).lower()), (True, str(value))
    )


def settings_table(tuned: SettingsTuning) -> Table:
    """The default, the scenario's own, the best, and the quickest others."""
    best = () if tuned.best is None or tuned.keep else (tuned.best,)
    named = [
        ("defaults", tuned.default),
        ("the scenario's own", tuned.requested),
        *((f"best: {_listed(trial)}", trial) for trial in best),
    ]
    listed = [dict(trial.values) for _, trial in named if trial is not None]
    others = [trial for trial in tuned.trials if dict(trial.values) not in listed]
    named += [(_listed(trial), trial) for trial in others[:MOST_ROWS]]
    default_s, known = tuned.default.step_time_s or 1.0, quantities.or_empty
    return tabulate(
        ((name, trial) for name, trial in named if trial is not None),
        (
            ("settings", lambda row: row[0]),
            (">step", lambda row: known(fine, row[1].step_time_s)),
            (">exposed", lambda row: known(quantities.duration, row[1].exposed_comm_s)),
            (
                ">to defaults",
                lambda row: known(
                    lambda step_s: change(step_s / default_s - 1), row[1].step_time_s
                ),
            ),
            (
                ">memory",
                lambda row: (
                    f"{format_bytes(row[1].memory_bytes)}{'' if row[1].fits else ', does not fit'}"
                ),
            ),
        ),
        ruled=False,
    )


def yaml_snippet(tuned: SettingsTuning) -> str:
    """The strategy section of the scenario with the best settings."""
    fields = (tuned.section or {"kind": tuned.kind}).items()
    return f"strategy: {{{', '.join(f'{name}: {_yaml(value)}' for name, value in fields)}}}"


def _notes(tuned: SettingsTuning) -> list[str]:
    """What was tried, and what the answer rests on."""
    said = (
        (
            True,
            (
                f"{len(tuned.trials)} choices of {', '.join(tuned.fields)} were tried: a coarse "
                "grid, then between the values next to the best. The defaults are among them; what "
                "saves less than 1 % is no reason to leave them."
            ),
        ),
        (
            tuned.too_large,
            f"Too large for the memory of a GPU, and not recommended: {tuned.too_large}.",
        ),
        (tuned.refused, f"Combinations that do not hold together: {tuned.refused}."),
    )
    return [*(text for applies, text in said if applies), *tuned.assumptions]


def settings_lines(tuned: SettingsTuning) -> list[Block]:
    """Arrange a tuning for the terminal."""
    return [
        Paragraph(settings_headline(tuned), "headline"),
        settings_table(tuned),
        *([] if tuned.best is None else [Code(yaml_snippet(tuned)), *words_blocks(tuned.words)]),
        *paragraphs(_notes(tuned), "note"),
    ]


def settings_json(tuned: SettingsTuning) -> dict[str, Any]:
    """Return a tuning as JSON; times in seconds, values of settings as a scenario has them."""
    return dict(
        as_json(
            {
                "scenario": tuned.scenario.name,
                **attributes(tuned, "workload machine gpus nodes kind strategy fields"),
                "default": _trial(tuned.default),
                "asked": None if tuned.requested is None else _trial(tuned.requested),
                "best": None if tuned.best is None else _trial(tuned.best),
                "gain": tuned.gain,
                "recommended": {"keep": "default" if tuned.keep else None},
                "tried": len(tuned.trials),
                **attributes(tuned, "simulated too_large refused"),
                "curve": [_trial(trial) for trial in tuned.trials],
                "snippet": yaml_snippet(tuned),
                **attributes(tuned, "words assumptions provenance"),
            },
            "tuning",
        )
    )


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "settings": dict(trial.values),
        **attributes(trial, "step_time_s exposed_comm_s memory_bytes fits"),
    }


def draw_trials(tuned: SettingsTuning) -> Drawing:
    """Draw the step of each choice that was simulated, the shortest on top."""
    shown = [
        (escape(_listed(trial), quote=False), trial.step_time_s)
        for trial in tuned.trials
        if trial.step_time_s is not None
    ][:MOST_BARS]
    hover, times_s = [f"{name}: {fine(time_s)}" for name, time_s in shown], [s for _, s in shown]
    return stack_parts(
        [f"{name} " for name, _ in shown],
        [("", WORK["backward"], times_s, hover)],
        longest_s=max(times_s, default=1.0),
        row_pixels=26,
    )


def settings_html(tuned: SettingsTuning) -> str:
    """Build the page as one string."""
    setting = f"{tuned.workload} with {tuned.strategy} on {tuned.machine}"
    return render_html(
        f"Settings of {setting}",
        [
            header(setting, settings_headline(tuned), [PREDICTION], [tuned.scenario.question]),
            None if tuned.best is None else section("What to paste", "", Code(yaml_snippet(tuned))),
            words_section(tuned.words),
            section("Settings that were tried", "", settings_table(tuned)),
            grounds(_notes(tuned), spelled(tuned.provenance)),
        ],
    )


FILES = {
    "tune.html": settings_html,
    "tune.json": settings_json,
    SPREADSHEET: lambda answer: spreadsheet(settings_json(answer)),
}
"""Files of a tuning of settings, and what makes them."""
