"""Prices and failure rates that a plan takes of a list, each with its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.files import load_document
from perfmodel.report.plan_text import answers
from perfmodel.scenario import load_scenario
from perfmodel.studies.plan import plan_scenario, prices
from perfmodel.studies.plan.candidates import find_hardware
from perfmodel.studies.plan.export import cautions
from perfmodel.studies.plan.prices import PriceList, apply_list
from perfmodel.topology.templates.gpus import gpu_sources

PLAN = """\
# Which is cheapest?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16, optimizer: sgd-momentum}
cluster: {node: dgx-a100}
training: {batch_per_gpu: 8}
plan:
  prices: list
  target: {samples: 1e6}
  failures: {restart: 1 min, checkpoint_write: 1 s, runs: 10}
  candidates:
    - {name: cloud, node: aws-p5, nodes: [1]}
    - {name: any, node: dgx-h100, nodes: [1], gpus_per_node: 4}
    - {name: stated, node: dgx-a100, nodes: [1], price_per_gpu_hour: 5 USD/h, mtbf_per_node: 9 d}
"""
OWN = """\
perfmodel: 1
kind: prices
prices:
  - {gpu: h100-sxm5-80gb, price_per_gpu_hour: 1 EUR/h, date: today, source: a friend}
"""
DAY_S = 86400.0


def resolved(tmp_path: Path, *fields: str, text: str = PLAN) -> tuple[Any, dict[str, str]]:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    scenario = load_scenario(path, fields)
    assert scenario.plan is not None
    hardware = {c.name: find_hardware(scenario, c) for c in scenario.plan.candidates}
    return apply_list(scenario, scenario.plan, hardware)


def test_the_machine_goes_before_the_gpu_and_what_is_stated_before_both(tmp_path: Path) -> None:
    section, sources = resolved(tmp_path)
    cloud, any_, stated = section.candidates
    assert (cloud.price_per_gpu_hour.amount, any_.price_per_gpu_hour.amount) == (4.916, 2.99)
    assert stated.price_per_gpu_hour.amount == 5
    assert cloud.mtbf_per_node == pytest.approx(264 * DAY_S)
    assert any_.mtbf_per_node == pytest.approx(2 * 264 * DAY_S), "half of the GPUs"
    assert stated.mtbf_per_node == pytest.approx(9 * DAY_S)
    assert set(sources) == {
        f"{of} of {name}" for of in ("price", "failures") for name in ("cloud", "any")
    }
    assert "2025" in sources["price of any"]


def test_a_list_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine-prices.yaml").write_text(OWN)
    text = PLAN.replace("prices: list", "prices: mine-prices.yaml")
    text = text.replace("restart", "mtbf_per_node: 1 d, restart")
    with pytest.raises(InputError, match=r"plan\.prices: found EUR and USD; allowed: one currency"):
        resolved(tmp_path, text=text)
    section, sources = resolved(tmp_path, text=text.replace("5 USD", "5 EUR"))
    assert [each.price_per_gpu_hour.amount for each in section.candidates] == [1, 1, 5]
    assert sources["price of cloud"] == "a friend, today"


def test_what_no_list_knows_is_asked_for(tmp_path: Path) -> None:
    text = PLAN.replace("dgx-h100", "rtx4090-x8")
    with pytest.raises(
        InputError, match=r"no rate of a rtx-4090 is listed.* or in candidate 'any'"
    ):
        resolved(tmp_path, text=text)
    with pytest.raises(InputError, match=r"mtbf_per_node: found nothing; allowed: .*prices: list"):
        resolved(tmp_path, text=PLAN.replace("  prices: list\n", ""))
    with pytest.raises(InputError, match="nowhere"):
        resolved(tmp_path, "plan.prices=nowhere.yaml")


def test_what_has_no_price_is_told_where_others_have_one(tmp_path: Path) -> None:
    text = PLAN.replace("aws-p5, nodes: [1]", "mi300x-x8, nodes: [1], mtbf_per_node: 9 d")
    section, _ = resolved(tmp_path, text=text)
    (said,) = [each for each in cautions(section, ()) if "price" in each]
    assert said.startswith("cloud has no price")
    bare = section.model_copy(update={"candidates": section.candidates[:1]})
    assert not [each for each in cautions(bare, ()) if "price" in each]


def test_the_list_that_ships_names_gpus_that_are_known() -> None:
    listed = load_document(PriceList, Path(prices.__file__).with_name("prices.yaml"))
    for line in (*listed.prices, *listed.failures):
        assert gpu_sources(line.gpu)
        assert line.source
        assert line.date


@pytest.mark.slow
def test_the_answer_says_price_and_share(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(PLAN)
    plan = plan_scenario(load_scenario(path), jobs=1)
    assert plan.best is not None
    assert plan.best.bill is not None
    assert plan.best.candidate == "any"
    bill = plan.best.bill
    assert bill.price_per_gpu_hour == 2.99
    assert bill.machines == pytest.approx(4 * 2.99 * plan.best.wall_s / 3600)
    said = answers(plan)["Price of any"].replace("\N{NO-BREAK SPACE}", " ")
    assert said == "2.99 USD per GPU and hour (listed, see the sources), which is 100 % of the cost"
    assert plan.sources["price of any"].startswith("Lambda on-demand")
