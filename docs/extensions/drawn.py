"""What directives of pages draw or write, by the name of the directive; without Sphinx.

Each is a function of the directive's argument and its lines that returns HTML and Markdown. HTML is
empty where Markdown says it all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

import perfmodel as pm
from docs.extensions import (
    accuracy_tables,
    api_pages,
    catalog_tables,
    routes,
    schedule_steps,
    step_timelines,
    support_tables,
)
from perfmodel.collectives.catalog import maker


@dataclass(frozen=True, slots=True)
class Drawn:
    """What stands in a page, and in its Markdown twin."""

    html: str
    markdown: str


TABLES: Mapping[str, Callable[[], str]] = {
    "newest": accuracy_tables.newest,
    "by-version": accuracy_tables.by_version,
    "worst": accuracy_tables.worst,
    "published-trainings": accuracy_tables.published_trainings,
    "grades": accuracy_tables.grades,
    "matrix": accuracy_tables.matrix,
}
CATALOGS: Mapping[str, Callable[[], str]] = {
    "algorithms": catalog_tables.algorithms,
    "prices": catalog_tables.prices,
    "failures": catalog_tables.failures,
}


def schedule_drawn(argument: str, body: str) -> Drawn:
    """Steps of an all-reduce: the argument is its algorithm, the body ``ranks: 4``."""
    asked = yaml.safe_load(body)
    plan = maker("all_reduce", argument)
    schedule = plan(asked["ranks"], 4 * 64 * asked["ranks"])
    title = f"All-reduce of {asked['ranks']} ranks by {argument}"
    return Drawn(schedule_steps.figures_of(schedule, title), schedule_steps.markdown_of(schedule))


def timeline_drawn(argument: str, body: str) -> Drawn:
    """Steps of scenarios below each other: the body has each scenario's fields by its title."""
    del argument
    pictures = [
        (title, _bars(yaml.safe_dump(asked))) for title, asked in yaml.safe_load(body).items()
    ]
    tables = [f"{title}:\n\n{step_timelines.markdown_of(bars)}" for title, bars in pictures]
    return Drawn(step_timelines.figure_of(pictures), "\n\n".join([*tables, step_timelines.NOTE]))


@lru_cache(maxsize=64)
def _bars(asked: str) -> list[step_timelines.Bar]:
    fields: dict[str, Any] = yaml.safe_load(asked)
    scenario = fields.pop("scenario", None)
    result = pm.run(scenario, fields) if scenario else pm.run(fields)
    return step_timelines.bars_of(result.main)


def routes_drawn(argument: str, body: str) -> Drawn:
    """Ways of bytes below each other: the body has each one's machine and ends by its title."""
    del argument
    found = [routes.route_of(title, asked) for title, asked in yaml.safe_load(body).items()]
    return Drawn(routes.figure_of(found), routes.markdown_of(found))


def table_drawn(argument: str, body: str) -> Drawn:
    """Tables of accuracy, by name."""
    del body
    return Drawn("", TABLES[argument]())


def support_drawn(argument: str, body: str) -> Drawn:
    """Tables of what runs with what, by name."""
    del body
    return Drawn("", _support(argument))


_support = lru_cache(maxsize=8)(support_tables.support)


def catalog_drawn(argument: str, body: str) -> Drawn:
    """Tables of algorithms and prices that ship, by name."""
    del body
    return Drawn("", CATALOGS[argument]())


def docstring_drawn(argument: str, body: str) -> Drawn:
    """What autodoc shows, in Markdown."""
    del argument
    return Drawn("", api_pages.docstring_markdown(body.split()[2]))


DRAWN: Mapping[str, Callable[[str, str], Drawn]] = {
    "schedule-steps": schedule_drawn,
    "step-timeline": timeline_drawn,
    "routes": routes_drawn,
    "accuracy": table_drawn,
    "support": support_drawn,
    "catalog": catalog_drawn,
    "eval-rst": docstring_drawn,
}
"""By directive; ``eval-rst`` is Sphinx's own."""
