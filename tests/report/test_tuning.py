"""The page of tuned buckets: what it says, and how it opens in a real browser."""

from __future__ import annotations

import html
import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfmodel.report import tuning_text
from perfmodel.report.common.html import write_each
from perfmodel.report.tuning import FILES, tuned_html
from perfmodel.report.tuning_text import curve_csv, tuned_json
from perfmodel.scenario import load_scenario
from perfmodel.studies.tune.model import TuneResult
from perfmodel.studies.tune.run import tune_scenario

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "<img src=x onerror=alert(1)> & <script>alert(2)</script>"
TEXT = f"""# {HOSTILE}
perfmodel: 1
model: {{name: resnet18}}
compute: {{precision: fp16}}
cluster: {{node: ethernet-10g, nodes: 4, fabric: one-switch}}
training: {{batch_per_gpu: 32}}
"""
FIGURES = 3


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    path = tmp_path_factory.mktemp("scenario") / "hostile.yaml"
    path.write_text(TEXT)
    return tune_scenario(load_scenario(path), horovod=True)


@pytest.mark.slow
def test_the_page_says_what_the_json_says(tuned: TuneResult) -> None:
    page, data = tuned_html(tuned), tuned_json(tuned)
    for told in data["words"].values():
        assert html.escape(told["text"]) in page
    assert page.count("DistributedDataParallel(model") == 1
    assert tuning_text.fine(tuned.best_list.step_time_s) in page
    assert tuning_text.fine(tuned.lower_bound_s or 0.0) in page


def test_first_steps_that_read_alike_are_said_to_be_alike(tuned: TuneResult) -> None:
    usual_s = tuned.default.first_step_time_s
    alike, longer = (
        replace(tuned, best_list=replace(tuned.best_list, first_step_time_s=factor * usual_s))
        for factor in (1.0 + 1e-9, 1.5)
    )
    usual, more = tuning_text.fine(usual_s), tuning_text.fine(1.5 * usual_s)
    assert tuning_text.first_step(alike).endswith(f": it takes {usual} either way.")
    assert tuning_text.first_step(longer).endswith(f": {more} instead of {usual}.")


def test_words_of_a_scenario_are_text_and_never_markup(tuned: TuneResult) -> None:
    page = tuned_html(tuned)
    assert "<img src=x" not in page
    assert "<script>alert(2)" not in page
    assert "&lt;img src=x" in page


def test_the_curve_covers_all_caps_without_a_gap(tuned: TuneResult) -> None:
    lines = curve_csv(tuned).splitlines()
    ends = [line.split(",")[1:3] for line in lines[1:]]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))
    assert ends[-1][1] == ""


def test_gains_are_said_as_numbers(tuned: TuneResult) -> None:
    rows = tuning_text.settings_table(tuned).rows
    assert rows[0][3] == "same"
    assert rows[0][1] == tuning_text.fine(tuned.default.step_time_s)
    assert tuning_text.change(-0.0131) == "\N{MINUS SIGN}1.3\N{NO-BREAK SPACE}%"
    assert tuning_text.change(0.0042) == "+0.42\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize(
    ("time_s", "words"), [(0.189324, "189.3 ms"), (1.0, "1.000 s"), (2.5e-5, "25.00 µs")]
)
def test_step_times_have_four_digits(time_s: float, words: str) -> None:
    assert tuning_text.fine(time_s).replace("\N{NO-BREAK SPACE}", " ") == words


def test_slivers_between_good_caps_go_unsaid(tuned: TuneResult) -> None:
    spans = tuning_text.wide_spans(tuned.plateau.spans_mb)
    assert 1 <= len(spans) <= len(tuned.plateau.spans_mb)
    assert all(low < high for low, high in spans)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_page_opens_cleanly(
    browser: Browser, tuned: TuneResult, tmp_path: Path, width: int, height: int
) -> None:
    file = write_each(FILES, tuned, tmp_path)
    page = browser.new_page(viewport={"width": width, "height": height})
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_function(
        f"document.querySelectorAll('.js-plotly-plot .main-svg').length >= {FIGURES}"
    )
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".js-plotly-plot").count() == FIGURES
    page.close()


def test_the_head_of_the_page_is_one_sentence(tuned: TuneResult) -> None:
    answer, limit = tuning_text.answer(tuned)
    assert tuning_text.headline(tuned).endswith(f"{answer[1:]} {limit}".strip())
    assert tuned.workload not in answer
    page = tuned_html(tuned)
    assert f"<h1>{html.escape(answer)}</h1>" in page
