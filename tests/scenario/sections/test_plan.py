"""The words of `plan:`: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError, UnitError
from perfmodel.scenario import Money, TargetSection, load_scenario, scenario_digest
from perfmodel.scenario.sections.plan import DatasetSize, parse_money

GOOD = """\
# Which cluster?
perfmodel: 1
model: {name: resnet50}
compute: {precision: fp16}
cluster: {node: dgx-a100}
training: {batch_per_gpu: 64}
plan:
  target: {epochs: 90, dataset: 1_281_167}
  deadline: 2 d
  budget: 1_000 USD
  failures:
    mtbf_per_node: 264 d
    checkpoint_write: 30 s
    restart: 5 min
  candidates:
    - name: rented
      node: dgx-a100
      fabric: rail-optimised
      nodes: [1, 2]
      price_per_gpu_hour: 2.50 USD/h
    - name: bought
      node: dgx-h100
      nodes: [1]
      purchase: {price_per_node: 300_000 USD, years: 4}
      power: {pue: 1.3, energy_price: 120 USD/MWh}
  upgrades:
    - {name: more, set: {what_if.network_bandwidth: 2}, price: 10e3 USD}
"""


@pytest.fixture
def write(tmp_path):
    def to(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return to


def faults(path, *overrides):
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return [(f.field, f.line, f.found, f.allowed) for f in caught.value.faults]


def test_a_plan_is_read_whole(write):
    plan = load_scenario(write(GOOD)).plan
    rented, bought = plan.candidates
    assert plan.target.dataset == DatasetSize(1_281_167, "samples")
    assert plan.deadline == 2 * 86400
    assert plan.budget == Money(1000.0, "USD")
    assert rented.price_per_gpu_hour == Money(2.5, "USD")
    assert rented.fabric.kind == "rail-optimised"
    assert bought.purchase.price_per_node.amount == 300_000
    assert bought.purchase.utilisation == 1.0
    assert bought.power.energy_price == Money(0.12, "USD")  # per kWh
    assert plan.upgrades[0].price == Money(10_000.0, "USD")
    assert plan.paid_in == "USD"


def test_run_does_not_see_the_plan(write):
    with_plan = load_scenario(write(GOOD))
    without = load_scenario(write(GOOD[: GOOD.index("plan:")]))
    assert scenario_digest(with_plan) == scenario_digest(without)


@pytest.mark.parametrize(
    ("old", "new", "field", "found", "allowed"),
    [
        ("90, dataset: 1_281_167", "90", "plan.target", "90", "'dataset' together with 'epochs'"),
        ("epochs: 90,", "epochs: 90, samples: 5,", "plan.target", "90", "exactly one of"),
        ("1_281_167", "1.5", "plan.target.dataset", "1.5", "a number of samples"),
        ("1_281_167", "10e9 words", "plan.target.dataset", "10e9 words", "'10e9 tokens'"),
        ("epochs: 90", "epochs: 0", "plan.target.epochs", "0", "greater than 0"),
        ("2.50 USD/h", "2.50", "plan.candidates.0.price_per_gpu_hour", "no currency", "USD/h"),
        ("2.50 USD/h", "$2.50", "plan.candidates.0.price_per_gpu_hour", "write USD", "2.50 USD"),
        ("2.50 USD/h", "2.50 usd", "plan.candidates.0.price_per_gpu_hour", "capital", "USD/h"),
        ("2.50 USD/h", "USD 2.50", "plan.candidates.0.price_per_gpu_hour", "after", "USD/h"),
        ("2.50 USD/h", "2.50 USD/d", "plan.candidates.0.price_per_gpu_hour", "per 'd'", "'/h'"),
        ("2.50 USD/h", "'2,50 USD/h'", "plan.candidates.0.price_per_gpu_hour", "a comma", "USD"),
        ("2.50 USD/h", "-2.50 USD/h", "plan.candidates.0.price_per_gpu_hour", "less than", "USD"),
        ("1_000 USD", "1_000 USD/h", "plan.budget", "per 'h'", "no slash"),
        ("120 USD/MWh", "120 USD", "plan.candidates.1.power.energy_price", "per noth", "'/kWh'"),
        ("2.50 USD/h", "2.50 EUR/h", "plan.candidates.0.price_per_gpu_hour", "EUR", "convert"),
        ("2 d\n", "2\n", "plan.deadline", "no unit", "a time"),
        ("264 d", "0 d", "plan.failures.mtbf_per_node", "0", "greater than 0"),
        ("    checkpoint_write: 30 s\n", "", "plan.failures", "restart", "'storage_bandwidth'"),
        ("30 s", "30 s\n    storage_bandwidth: 1 GB/s", "plan.failures", "", "either"),
        ("30 s", "30 s\n    checkpoint_size: 1 GB", "plan.failures", "", "only"),
        ("[1, 2]", "[2, 1]", "plan.candidates.0", "rented", "that grow"),
        ("[1, 2]", "[]", "plan.candidates.0.nodes", "[]", "at least 1"),
        ("      fabric: rail-optimised\n", "", "plan.candidates.0.fabric", "nothing", "2 nodes"),
        ("name: bought", "name: rented", "plan.candidates.1.name", "'rented'", "no other"),
        (
            "years: 4",
            "years: 4, utilisation: 2",
            "plan.candidates.1.purchase.utilisation",
            "2",
            "less than or equal to 1",
        ),
        ("pue: 1.3", "pue: 0.9", "plan.candidates.1.power.pue", "0.9", "or equal to 1"),
        ("pue: 1.3", "per_node: 6 kW, factor: 2", "plan.candidates.1.power", "6 kW", "not both"),
        ("pue: 1.3", "per_node: 6000", "plan.candidates.1.power.per_node", "no unit", "a power"),
        (
            "nodes: [1]",
            "nodes: [1]\n      price_per_gpu_hour: 1 USD/h",
            "plan.candidates.1",
            "",
            "(rented) or",
        ),
        ("price: 10e3 USD", "price: 1 USD, price_per_node: 1 USD", "plan.upgrades.0", "", "one of"),
        (
            "name: more,",
            "name: more, candidates: [rentd],",
            "plan.upgrades.0.candidates.0",
            "'rentd'",
            "did you mean 'rented'",
        ),
        (
            "what_if.network_bandwidth: 2",
            "plan.deadline: 1 d",
            "plan.upgrades.0.set.plan.deadline",
            "a field of 'plan'",
            "plan.failures",
        ),
        (
            "what_if.network_bandwidth: 2",
            "cluster.node: dgx-h100",
            "plan.upgrades.0.set.cluster.node",
            "candidate itself",
            "another candidate",
        ),
        (
            "what_if.network_bandwidth: 2",
            "cluster.nodes: 4",
            "plan.upgrades.0.set.cluster.nodes",
            "candidate itself",
            "another candidate",
        ),
        (
            "nodes: [1]",
            "nodes: [1]\n      set: {cluster.gpus_per_node: 2}",
            "plan.candidates.1.set.cluster.gpus_per_node",
            "candidate itself",
            "another candidate",
        ),
        ("1_000 USD", "0 USD", "plan.budget", "0 USD", "more than zero"),
        ("candidates:", "candidats:", "plan.candidats", "unknown", "did you mean 'candidates'"),
    ],
)
def test_faults_name_field_and_what_is_allowed(write, old, new, field, found, allowed):
    assert old in GOOD
    said = faults(write(GOOD.replace(old, new)))
    mine = [one for one in said if one[0] == field]
    assert mine, said
    assert found in mine[0][2]
    assert allowed in mine[0][3]
    assert mine[0][1] is not None, "it names the line"


def test_all_faults_at_once(write):
    text = (
        GOOD.replace("2.50 USD/h", "2.50").replace("264 d", "264").replace("years: 4", "years: -1")
    )
    assert {field for field, *_ in faults(write(text))} == {
        "plan.candidates.0.price_per_gpu_hour",
        "plan.failures.mtbf_per_node",
        "plan.candidates.1.purchase.years",
    }


def test_a_currency_may_be_demanded(write):
    said = faults(write(GOOD), "plan.currency=EUR")
    assert {field for field, *_ in said} == {
        "plan.budget",
        "plan.candidates.0.price_per_gpu_hour",
        "plan.candidates.1.purchase.price_per_node",
        "plan.candidates.1.power.energy_price",
        "plan.upgrades.0.price",
    }


@given(st.floats(0, 1e12, allow_nan=False), st.sampled_from(["USD", "EUR", "CHF"]))
def test_money_written_is_money_read(amount, currency):
    money = parse_money(f"{amount!r} {currency}")
    assert money == Money(amount, currency)


@pytest.mark.parametrize(
    "text", ["", "USD", "1e999 USD", "1..2 USD", "nan USD", "1 USDX", None, True]
)
def test_what_is_no_money(text):
    with pytest.raises(UnitError):
        parse_money(text)


def test_large_counts_may_be_written_with_an_exponent():
    assert TargetSection(tokens=300e9).tokens == 300_000_000_000
    assert TargetSection(epochs=2, dataset="10e9 tokens").dataset == DatasetSize(10**10, "tokens")
