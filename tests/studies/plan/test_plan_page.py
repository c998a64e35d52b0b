"""The page and the Markdown of a plan: complete, quiet, and deaf to hostile names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfmodel.report import plan as page
from perfmodel.report import plan_text as said
from perfmodel.report.common.html import write_each
from perfmodel.report.plan import FILES, plan_html, plan_markdown
from perfmodel.report.plan_figures import draw_time_against_cost
from perfmodel.studies.plan.decisions import choose_answers
from perfmodel.studies.plan.model import PlanResult, UpgradeOutcome

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>|*b*`"


def hostile(plan: PlanResult) -> PlanResult:
    """The same plan, its file written by somebody who means harm."""
    renamed = {}

    def rename(option):
        return renamed.setdefault(
            id(option), replace(option, candidate=HOSTILE + option.candidate, fabric=HOSTILE)
        )

    def of(option):
        return None if option is None else rename(option)

    answers = replace(
        plan.answers,
        **{
            name: of(getattr(plan.answers, name))
            for name in ("smallest_in_time", "cheapest_in_time", "fastest", "cheapest")
        },
        pareto=tuple(map(rename, plan.answers.pareto)),
        ladder=tuple(map(rename, plan.answers.ladder)),
    )
    outcomes = tuple(
        replace(one, upgrade=HOSTILE, before=rename(one.before)) for one in plan.outcomes
    )
    return replace(
        plan,
        question=HOSTILE,
        scenario=HOSTILE,
        workload=HOSTILE,
        answers=answers,
        options=tuple(map(rename, plan.options)),
        outcomes=outcomes,
        cautions=(HOSTILE,),
        assumptions=(HOSTILE,),
        sources={HOSTILE: HOSTILE},
    )


def text_of(page: str) -> str:
    """The page without plotly and style sheet."""
    kept = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return kept.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.slow
def test_the_page_has_every_part(planned):
    _, plan = planned
    text = text_of(plan_html(plan))
    for title in (
        "Answers",
        "Time against cost",
        "Which upgrade pays",
        "Failures and checkpoints",
        "For a purchase paper",
        "Left out",
        "What this rests on",
    ):
        assert f"<h2>{title}</h2>" in text
    assert "80 % interval" in text
    assert "NVIDIA A100 data sheet" in text
    assert "dgx-a10" in text


def test_names_are_text_and_never_markup(planned):
    _, plan = planned
    page = plan_html(hostile(plan))
    assert "&lt;img src=x onerror" in page
    assert "<img src=x" not in page
    assert "<script>alert(2)" not in page
    markdown = plan_markdown(hostile(plan))
    assert "<img" not in markdown
    assert "<script" not in markdown
    widths = {
        len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines() if line[:1] == "|"
    }
    assert widths == {5, 8, 9, 11, 12}, "no name opens a column of its own"


def test_hovering_shows_names_as_text(planned):
    _, plan = planned
    figure = draw_time_against_cost(hostile(plan))
    texts = [text for trace in figure.data for text in trace.hovertext or ()]
    assert texts
    assert all("<img" not in text and "&lt;img" in text for text in texts)


def test_a_plan_without_money_or_failures_still_makes_a_page(planned, option):
    _, plan = planned
    options = (option(1e5, None, 8), option(5e4, None, 16, interval=(4e4, 6e4)))
    bare = replace(
        plan,
        options=options,
        outcomes=(),
        currency=None,
        budget=None,
        deadline_s=None,
        answers=choose_answers(options, None, None),
    )
    text = text_of(plan_html(bare))
    assert "Fastest: a, 2 nodes (16 GPUs), in 13.9" in text
    assert "purchase paper" not in text
    assert "Failures and checkpoints" not in text
    assert plan_markdown(bare).startswith("# Fastest: a, 2")


def test_error_bars_reach_the_ends_of_the_intervals_in_hours(planned, option):
    _, plan = planned
    options = (option(5e4, 1.0, 16, interval=(4e4, 7e4)),)
    answers = choose_answers(options, None, None)
    figure = draw_time_against_cost(replace(plan, options=options, answers=answers, outcomes=()))
    (bars,) = (trace.error_x for trace in figure.data if trace.error_x.array is not None)
    assert bars.array == pytest.approx([2e4 / 3600])
    assert bars.arrayminus == pytest.approx([1e4 / 3600])


def test_nothing_in_time_names_the_quickest(planned, option):
    _, plan = planned
    options = (option(9 * 86400.0, 5.0, 8), option(8 * 86400.0, 9.0, 16))
    late = replace(
        plan,
        options=options,
        outcomes=(),
        deadline_s=86400.0,
        budget=1.0,
        answers=choose_answers(options, 86400.0, 1.0),
    )
    assert said.headline(late).replace("\N{NO-BREAK SPACE}", " ") == (
        "Nothing finishes in 24 h: even a, 2 nodes (16 GPUs) takes 8.00 d"
    )
    answers = dict(said.answers(late))
    questions = [question.replace("\N{NO-BREAK SPACE}", " ") for question in answers]
    assert questions == [
        "Smallest that finishes in 24 h, cheapest that finishes in 24 h",
        "Fastest for 1.00 USD at most",
        "Fastest of all",
        "Cheapest of all",
    ]
    assert [answer.startswith("none; ") for answer in answers.values()] == [
        True,
        True,
        False,
        False,
    ]
    assert all(answer.endswith("not in time") for answer in answers.values())


def test_a_free_cluster_has_no_logarithm(planned, option):
    _, plan = planned
    options = (option(9 * 86400.0, 0.0), option(8 * 86400.0, 9.0, 16))
    free = replace(plan, options=options, outcomes=(), answers=choose_answers(options, None, None))
    figure = draw_time_against_cost(free)
    assert figure.layout.yaxis.type != "log"
    assert {note.y for note in figure.layout.annotations} == {1, 100}, "at the budget of 100 USD"


def test_times_in_a_column_share_a_unit_that_shows_them_all():
    day, hour = 86400.0, 3600.0
    assert said.common_unit([9 * day, 29 * hour]) == ("d", day)
    assert said.common_unit([9 * day, 29.0]) is None
    assert said.span(29 * hour, ("d", day)) == "1.21\N{NO-BREAK SPACE}d"
    own = said.brief_range("6.30 d", (6.299, 6.301), "{:.2f}".format)
    assert own == "6.30 d", "no interval that rounds away"


def test_rare_failures_have_no_error_of_their_mean(planned):
    _, plan = planned
    table = page.failure_table(plan)
    by = [dict(zip(table.titles, row, strict=True)) for row in table.rows]
    one = next(o for o in plan.usable if (o.candidate, o.nodes) == ("bought", 2))
    row = next(r for r in by if (r["candidate"], r["nodes"]) == ("bought", "2"))
    lost_s = one.training.wall_s - one.training.work_s
    assert row["lost"] == said.span(lost_s)
    assert row["failures"] == f"{one.training.wall_s / (5 * 86400):.3f}"
    assert all("\N{PLUS-MINUS SIGN}" not in r["simulated"] for r in by), "50 runs with few failures"


def test_an_upgrade_is_told_for_the_option_of_the_headline_too(planned, option):
    _, plan = planned
    day = 86400.0
    cheap, big = option(10 * day, 10.0, 8), option(5 * day, 20.0, 16)
    same = UpgradeOutcome("u", cheap, cheap, 0.0, 0.0, 90.0, None, "never")
    saves = UpgradeOutcome("u", big, option(4 * day, 16.0, 16), day, 4.0, 90.0, 90 * day, "later")
    options = (cheap, big)
    more = replace(
        plan,
        options=options,
        outcomes=(saves, same),
        deadline_s=None,
        budget=None,
        answers=choose_answers(options, None, None),
    )
    told = dict(said.answers(more))["Does 'u' pay?"].replace("\N{NO-BREAK SPACE}", " ")
    assert told.startswith("only in the long run: a, 2 nodes (16 GPUs), saves 24.0 h and 4.00 USD")
    assert "after 90.0 d of this, 23 trainings; a, 1 node (8 GPUs), the one above" in told, told
    assert told.endswith("nothing is saved")


DAY = 86400.0


def test_a_price_that_is_not_back_in_a_lifetime_is_said_so(planned, option):
    """728,000 days are a number that nobody reads as "never"."""
    before, after = option(10 * DAY, 100.0), option(9 * DAY, 99.0)
    for payback_s, sentence, cell in (
        (800 * DAY, "its price is back after 2.19 years of this", "2.19 years"),
        (728_000 * DAY, "its price is not back in 100 years of this", "over 100 years"),
    ):
        late = UpgradeOutcome("u", before, after, DAY, 1.0, 81e3, payback_s, "later")
        assert sentence in said.pays(late, "USD").replace("\N{NO-BREAK SPACE}", " ")
        plan = replace(planned[1], outcomes=(late,))
        (row,) = page.upgrade_table(plan).rows
        assert cell in [text.replace("\N{NO-BREAK SPACE}", " ") for text in row]
        answer = dict(said.answers(plan))["Does 'u' pay?"]
        assert answer.startswith("no: " if "100" in cell else "only in the long run: ")


def test_prices_that_differ_by_the_cent_are_told_apart():
    assert said.amount_only(0.0021) == "0.0021"
    assert said.amount_only(12.345) == "12.35"
    assert said.amount_only(1234.5) == "1,234"
    assert said.amount_only(0) == "0"


# ---------------------------------------------------------------- in a browser


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(
    ("width", "scheme", "evil"),
    [(1280, "light", False), (390, "light", False), (1280, "dark", True), (390, "light", True)],
)
def test_the_page_opens_cleanly(
    browser: Browser, planned, tmp_path: Path, width: int, scheme: str, evil: bool
) -> None:
    _, plan = planned
    file = write_each(FILES, hostile(plan) if evil else plan, tmp_path)
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri(), timeout=120_000)
    page.wait_for_function(
        "document.querySelectorAll('.js-plotly-plot .main-svg').length >= 1", timeout=120_000
    )
    page.mouse.move(width / 2, 700)
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("img").count() == 0
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert (ink == "rgb(228, 233, 239)") == (scheme == "dark")
    page.close()
