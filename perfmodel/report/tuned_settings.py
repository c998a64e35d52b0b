"""Tuned settings of a strategy: terminal, JSON and page."""

from __future__ import annotations

from html import escape
from typing import Any

from perfmodel.files import as_json, attributes
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
)
from perfmodel.report.common.figures import Drawing, bars, label_rows, new_figure, time_unit
from perfmodel.report.common.html import render_html
from perfmodel.report.common.palette import WORK
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
    if not tuned.default.fits:
        better = "and the defaults do not fit"
    elif tuned.gain < 0:
        better = "more than with the defaults, which do not fit"
    else:
        better = f"{quantities.percent(tuned.gain)} less than with the defaults"
    return f"{where}: with {_listed(tuned.best)} a step takes {step}, {better}."


def _listed(trial: Trial) -> str:
    return ", ".join(f"{name} {_yaml(value)}" for name, value in trial.values.items()) or "default"


def _yaml(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def settings_table(tuned: SettingsTuning) -> Table:
    """The default, the scenario's own, the best, and the quickest others."""
    named = [("defaults", tuned.default), ("the scenario's own", tuned.requested)]
    if tuned.best is not None and not tuned.keep:
        named.append((f"best: {_listed(tuned.best)}", tuned.best))
    listed = [dict(trial.values) for _, trial in named if trial is not None]
    others = [trial for trial in tuned.trials if dict(trial.values) not in listed]
    named += [(_listed(trial), trial) for trial in others[:MOST_ROWS]]
    rows = [_row(tuned, name, trial) for name, trial in named if trial is not None]
    return Table(("settings", ">step", ">exposed", ">to defaults", ">memory"), rows, ruled=False)


def _row(tuned: SettingsTuning, name: str, trial: Trial) -> tuple[str, ...]:
    memory = format_bytes(trial.memory_bytes) + ("" if trial.fits else ", does not fit")
    if trial.step_time_s is None or trial.exposed_comm_s is None:
        return (name, "", "", "", memory)
    relative = trial.step_time_s / (tuned.default.step_time_s or 1.0) - 1.0
    exposed = quantities.duration(trial.exposed_comm_s)
    return (name, fine(trial.step_time_s), exposed, change(relative), memory)


def yaml_snippet(tuned: SettingsTuning) -> str:
    """The strategy section of the scenario with the best settings."""
    fields = tuned.section or {"kind": tuned.kind}
    return f"strategy: {{{', '.join(f'{name}: {_yaml(value)}' for name, value in fields.items())}}}"


def _notes(tuned: SettingsTuning) -> list[str]:
    """What was tried, and what the answer rests on."""
    notes = (
        (
            f"{len(tuned.trials)} choices of {', '.join(tuned.fields)} were tried: a coarse grid, "
            "then between the values next to the best. The defaults are among them; what saves "
            "less than 1 % is no reason to leave them."
        ),
        f"Too large for the memory of a GPU, and not recommended: {tuned.too_large}."
        if tuned.too_large
        else "",
        f"Combinations that do not hold together: {tuned.refused}." if tuned.refused else "",
        *tuned.assumptions,
    )
    return [note for note in notes if note]


def _paste(tuned: SettingsTuning) -> list[str]:
    return [] if tuned.best is None else [yaml_snippet(tuned), *tuned.own_words]


def settings_lines(tuned: SettingsTuning) -> list[Block]:
    """Arrange a tuning for the terminal."""
    return [
        Paragraph(settings_headline(tuned), "headline"),
        settings_table(tuned),
        *paragraphs(f"  {line}" for line in _paste(tuned)),
        *paragraphs(_notes(tuned), "note"),
    ]


def settings_json(tuned: SettingsTuning) -> dict[str, Any]:
    """Return a tuning as JSON; times in seconds, values of settings as a scenario has them."""
    document = {
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
        **attributes(tuned, "own_words assumptions provenance"),
    }
    return dict(as_json(document, "tuning"))


def _trial(trial: Trial) -> dict[str, Any]:
    times = attributes(trial, "step_time_s exposed_comm_s memory_bytes fits")
    return {"settings": dict(trial.values), **times}


def draw_trials(tuned: SettingsTuning) -> Drawing:
    """Draw the step of each choice that was simulated, the shortest on top."""
    steps = [(_listed(each), each.step_time_s) for each in tuned.trials]
    shown = [(escape(name, quote=False), step_s) for name, step_s in steps if step_s is not None]
    del shown[MOST_BARS:]
    unit, scale = time_unit(max((step_s for _, step_s in shown), default=1.0), least=1.0)
    hover, lengths = (
        [f"{name}: {fine(step_s)}" for name, step_s in shown],
        [step_s / scale for _, step_s in shown],
    )
    places, title = list(range(len(shown))), f"time per step ({unit})"
    return new_figure(
        90 + 26 * len(shown),
        [bars("", lengths, places, WORK["backward"], hover, orientation="h")],
        **label_rows([f"{name} " for name, _ in shown], title, rangemode="tozero"),
        bargap=0.3,
    )


def settings_html(tuned: SettingsTuning) -> str:
    """Build the page as one string."""
    setting = f"{tuned.workload} with {tuned.strategy} on {tuned.machine}"
    facts = {name.replace("_", " "): value for name, value in tuned.provenance.items()}
    return render_html(
        f"Settings of {setting}",
        [
            header(setting, settings_headline(tuned), [PREDICTION], [tuned.scenario.question]),
            section("What to paste", "", Code("\n".join(_paste(tuned)))),
            section("Settings that were tried", "", settings_table(tuned)),
            grounds(_notes(tuned), facts),
        ],
    )


FILES = {"tune.html": settings_html, "tune.json": settings_json}
"""Files of a tuning of settings, and what makes them."""
