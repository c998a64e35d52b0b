"""The parts of a plan, each against numbers worked out by hand, and against its own laws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.scenario import (
    CandidateSection,
    FailureSection,
    PowerSection,
    TargetSection,
    UpgradeSection,
)
from perfmodel.studies.plan.cost import bill, node_W, rates
from perfmodel.studies.plan.decisions import choose, ladder, life_s, outcome, pareto, ranked
from perfmodel.studies.plan.failures import Upkeep, expected_wall_s
from perfmodel.studies.plan.model import Step
from perfmodel.studies.plan.time_to_train import (
    samples_at,
    steps_for,
    target_words,
    train,
    upkeep_of,
)

HOUR, DAY = 3600.0, 86400.0

anything = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


# ---------------------------------------------------------------- money and energy


def rented(price="2 USD/h", **more):
    return CandidateSection(name="r", node="n", nodes=[1], price_per_gpu_hour=price, **more)


def bought(**more):
    purchase = {"price_per_node": "70_128 USD", "years": 4.0, "utilisation": 0.5} | more
    return CandidateSection(
        name="b", node="n", nodes=[1], purchase=purchase,
        power={"per_node": "5 kW", "pue": 1.2, "energy_price": "0.10 USD/kWh"},
    )  # fmt: skip


def test_a_rent_by_hand():
    held = rates(rented(), nodes=4, gpus_per_node=8, gpu_W=400.0)
    sums = bill(held, 10 * HOUR, (9 * HOUR, 12 * HOUR), steps=1000)
    assert sums.total == pytest.approx(4 * 8 * 2.0 * 10)  # 640 USD
    assert sums.interval == pytest.approx((576.0, 768.0))
    assert sums.per_step == pytest.approx(0.64)
    assert sums.power_W == 4 * 8 * 400
    assert sums.energy_kWh == pytest.approx(128.0)  # 12.8 kW for 10 h, and in the rent
    assert sums.energy == 0
    assert sums.outlay is None


def test_a_purchase_by_hand():
    # 4 years of 8766 h, half of them used: 17,532 h, so 4 USD per node and hour.
    held = rates(bought(), nodes=2, gpus_per_node=8, gpu_W=None)
    sums = bill(held, 100 * HOUR, None, steps=10)
    assert sums.outlay == pytest.approx(140_256)
    assert sums.machines == pytest.approx(800.0)
    assert sums.energy_kWh == pytest.approx(2 * 5 * 1.2 * 100)  # 1,200 kWh
    assert sums.energy == pytest.approx(120.0)
    assert sums.total == pytest.approx(920.0)
    assert sums.interval is None


def test_power_of_a_node():
    assert node_W(PowerSection(), 8, 400.0) == 3200
    assert node_W(PowerSection(factor=1.5), 8, 400.0) == 4800
    assert node_W(PowerSection(per_gpu="300 W", factor=2.0), 4, 400.0) == 2400
    assert node_W(PowerSection(per_node="6.5 kW"), 8, 400.0) == 6500
    assert node_W(PowerSection(), 8, None) is None


def test_without_a_price_there_is_energy_and_no_cost():
    one = CandidateSection(name="x", node="n", nodes=[1])
    sums = bill(rates(one, nodes=1, gpus_per_node=8, gpu_W=100.0), HOUR, None, steps=1)
    assert (sums.total, sums.per_step, sums.energy_kWh) == (None, None, pytest.approx(0.8))


@given(st.floats(0.01, 100), st.floats(1, 1e8), st.integers(1, 500), st.floats(1.1, 10))
def test_cost_grows_with_price_time_and_nodes(price, wall_s, nodes, more):
    def cost(price=price, wall_s=wall_s, nodes=nodes, rent=0.0):
        held = rates(rented(f"{price!r} USD/h"), nodes=nodes, gpus_per_node=8, gpu_W=1.0,
                     more_rent=rent)  # fmt: skip
        return bill(held, wall_s, None, 1).total

    assert cost(price=2 * price) == pytest.approx(2 * cost())
    assert cost(wall_s=more * wall_s) == pytest.approx(more * cost())
    assert cost(nodes=2 * nodes) == pytest.approx(2 * cost())
    assert cost(rent=price) == pytest.approx(2 * cost())


# ---------------------------------------------------------------- target


def test_steps_go_through_all_samples():
    assert steps_for(1000, 100) == 10
    assert steps_for(1001, 100) == 11
    assert steps_for(1, 4096) == 1


# McCandlish et al. 2018: at the critical batch half of the examples are wasted; ten times it, 11.
def test_a_batch_beyond_the_critical_one_needs_more_samples():
    target = TargetSection(samples=1e6, critical_batch=1000)
    assert samples_at(target, 1e6, 1000) == 2e6
    assert samples_at(target, 1e6, 10_000) == 11e6
    at_reference = TargetSection(samples=1e6, critical_batch=1000, reference_batch=1000)
    assert samples_at(at_reference, 1e6, 1000) == 1e6
    assert samples_at(TargetSection(samples=1e6), 1e6, 10**6) == 1e6


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**7))
def test_time_and_samples_trade_as_the_paper_says(batch, critical, samples):
    """(S / S_min - 1) (E / E_min - 1) = 1 with S_min = E_min / B_crit."""
    target = TargetSection(samples=samples, critical_batch=critical)
    examples = samples_at(target, samples, batch)
    steps, fewest = examples / batch, samples / critical
    assert (steps / fewest - 1) * (examples / samples - 1) == pytest.approx(1.0, rel=1e-6)


def test_targets_in_words():
    assert target_words(TargetSection(epochs=90.0, dataset=1_281_167)) == (
        "90 epochs of 1.28117 million samples"
    )
    assert target_words(TargetSection(samples=2e12)) == "2 trillion samples"


# ---------------------------------------------------------------- training

STEP = Step(0.5, (0.4, 0.7), 200.0, 100, 0.0, "compute", 1e9, True)
TARGET = TargetSection(samples=720_000)


def test_a_training_without_failures_is_its_steps():
    found = train(STEP, TARGET, 720_000.0, None)
    assert found.steps == 7200
    assert found.wall_s == found.work_s == HOUR
    assert found.wall_interval_s == pytest.approx((0.8 * HOUR, 1.4 * HOUR))
    assert found.goodput == 1


def test_failures_come_from_all_nodes_and_checkpoints_from_their_size():
    failures = FailureSection(mtbf_per_node="100 d", storage_bandwidth="1 GB/s", restart="10 min")
    one = CandidateSection(name="a", node="n", nodes=[10])
    kept, every = upkeep_of(failures, one, 10, 0.5, 60e9)
    assert kept.mtbf_s == 10 * DAY
    assert kept.write_s == pytest.approx(60.0)
    # Daly by hand: sqrt(2 * 60 * 864000) = 10182.3; d / 2M = 3.472e-5;
    # 10182.3 (1 + 5.893e-3 / 3 + 3.9e-6) - 60 = 10142.4 s
    assert kept.interval_s == pytest.approx(10142.4, abs=0.5)
    assert every == pytest.approx(20285, abs=1)
    given = failures.model_copy(update={"checkpoint_every": 1000.2, "checkpoint_size": 5e9})
    kept, every = upkeep_of(given, one, 10, 0.5, 60e9)
    assert (kept.interval_s, every, kept.write_s) == (1000.0, 2000, 5.0)


def test_a_candidate_may_fail_in_its_own_way():
    failures = FailureSection(mtbf_per_node="100 d", checkpoint_write="1 s", restart="1 s")
    one = CandidateSection(name="a", node="n", nodes=[2], mtbf_per_node="10 d")
    assert upkeep_of(failures, one, 2, 1.0, 0.0)[0].mtbf_s == 5 * DAY


def test_goodput_is_work_over_wall_time():
    upkeep = Upkeep(2 * HOUR, 30.0, 300.0, 600.0)
    found = train(STEP, TARGET, 720_000.0, (upkeep, 1200), runs=100, seed=1)
    assert found.wall_s == pytest.approx(expected_wall_s(HOUR, upkeep))
    assert found.goodput == pytest.approx(HOUR / found.wall_s)
    assert found.wall_interval_s[0] < found.wall_s < found.wall_interval_s[1]
    assert abs(found.simulated.mean_s - found.wall_s) < 5 * found.simulated.error_s


def test_a_training_that_never_ends_says_so():
    said = train(STEP, TARGET, 720_000.0, (Upkeep(60.0, 300.0, 600.0, 600.0), 1200))
    assert isinstance(said, str)
    assert "more than 100 times as long" in said
    assert "one comes every 1 min on average, a checkpoint takes 5 min and a restart 10 min" in said


def test_failures_without_number_are_not_simulated_one_by_one():
    upkeep = Upkeep(0.1, 0.001, 0.001, 0.01)  # some 37,000 in an hour
    found = train(STEP, TARGET, 720_000.0, (upkeep, 1), runs=100, seed=1)
    assert found.simulated is None
    assert found.wall_interval_s == pytest.approx(
        (0.8 * found.wall_s, 1.4 * found.wall_s), rel=1e-3
    )


def test_luck_widens_the_interval():
    upkeep = Upkeep(2 * HOUR, 30.0, 300.0, 600.0)
    narrow = train(STEP, TARGET, 720_000.0, (upkeep, 1200))
    wide = train(STEP, TARGET, 720_000.0, (upkeep, 1200), runs=2000, seed=1)
    assert wide.wall_interval_s[0] < narrow.wall_interval_s[0]
    assert wide.wall_interval_s[1] > narrow.wall_interval_s[1]
    exact = train(replace(STEP, interval_s=(0.5, 0.5)), TARGET, 720_000.0, (upkeep, 1200),
                  runs=2000, seed=1)  # fmt: skip
    seen = exact.simulated
    assert exact.wall_interval_s == pytest.approx((seen.low_s, seen.high_s), rel=0.01)
    unknown = train(replace(STEP, interval_s=None), TARGET, 720_000.0, (upkeep, 1200), runs=9)
    assert unknown.wall_interval_s is None


# ---------------------------------------------------------------- answers


def test_answers_by_hand(option):
    slow, even, fast, dear = (
        option(10 * DAY, 100.0, 8), option(5 * DAY, 110.0, 16), option(2 * DAY, 150.0, 32),
        option(2 * DAY, 200.0, 16),
    )  # fmt: skip
    found = choose([slow, even, fast, dear], 6 * DAY, 120.0)
    assert found.smallest_in_time is even, "of 16 GPUs each the cheaper one"
    assert found.cheapest_in_time is even
    assert found.fastest_in_budget is even
    assert (found.fastest, found.cheapest) == (fast, slow)
    assert found.pareto == (fast, even, slow)
    assert found.ladder == (slow, dear), "smallest first, each quicker than all before"
    nothing = choose([slow], 6 * DAY, 50.0)
    assert nothing.smallest_in_time is nothing.cheapest_in_time is nothing.fastest_in_budget is None
    unasked = choose([slow, fast], None, None)
    assert unasked.smallest_in_time is unasked.fastest_in_budget is None


def test_unpriced_options_are_fast_or_small_and_nothing_else(option):
    free, priced = option(DAY, None), option(2 * DAY, 5.0)
    found = choose([free, priced], 3 * DAY, 100.0)
    assert found.fastest is free
    assert found.cheapest is found.cheapest_in_time is found.fastest_in_budget is priced
    assert found.smallest_in_time is priced, "as small, and its cost is known"
    assert found.pareto == (priced,)


many = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.sampled_from([8, 16, 24])), max_size=12
)


@anything
@given(many)
def test_the_front_is_what_nothing_beats(option, numbers):
    options = [option(float(t), float(c), g) for t, c, g in numbers]
    front = pareto(options)

    def beaten(one):
        return any(
            other.wall_s <= one.wall_s and other.cost <= one.cost
            and (other.wall_s, other.cost) != (one.wall_s, one.cost)
            for other in options
        )  # fmt: skip

    assert sorted(map(id, front)) == sorted(id(one) for one in options if not beaten(one))
    assert all(a.wall_s <= b.wall_s for a, b in itertools.pairwise(front))


@anything
@given(many, st.integers(1, 6))
def test_the_ladder_answers_every_deadline(option, numbers, deadline):
    options = [option(float(t), float(c), g) for t, c, g in numbers]
    steps = [one for one in ladder(options) if one.wall_s <= deadline]
    wanted = choose(options, float(deadline), None).smallest_in_time
    assert (steps[0].gpus if steps else None) == (wanted.gpus if wanted else None)


@anything
@given(many, st.integers(1, 6), st.integers(1, 6))
def test_answers_keep_what_they_promise(option, numbers, deadline, budget):
    options = [option(float(t), float(c), g) for t, c, g in numbers]
    found = choose(options, float(deadline), float(budget))
    for one in (found.smallest_in_time, found.cheapest_in_time):
        assert one is None or one.wall_s <= deadline
    if found.fastest_in_budget is not None:
        assert found.fastest_in_budget.cost <= budget
    if options:
        assert found.fastest.wall_s == min(one.wall_s for one in options)
        assert found.cheapest.cost == min(one.cost for one in options)


# ---------------------------------------------------------------- upgrades


def upgraded(price, before, after, candidate=None):
    upgrade = UpgradeSection(name="u", set={"what_if.compute": 2}, **price)
    return outcome(upgrade, candidate or rented(), before, after)


def test_an_upgrade_by_hand(option):
    # 100 USD in 10 d become 80 USD in 8 d: 20 USD per training, so 2.50 USD a day of training.
    before, after = option(10 * DAY, 100.0, 16), option(8 * DAY, 80.0, 16)
    found = upgraded({"price_per_node": "50 USD"}, before, after)
    assert (found.saved_s, found.saved, found.price) == (2 * DAY, 20.0, 100.0)
    assert found.payback_s == pytest.approx(40 * DAY)
    assert found.pays == "later"
    assert upgraded({"price": "20 USD"}, before, after).pays == "in this training"
    assert upgraded({"price": "21 USD"}, before, after).pays == "later"
    assert upgraded({}, before, after).pays == "no price"


def test_rent_that_saves_more_than_it_costs_pays_at_once(option):
    before = option(10 * DAY, 100.0)
    found = upgraded({"price_per_gpu_hour": "1 USD/h"}, before, option(9 * DAY, 99.0))
    assert (found.pays, found.payback_s) == ("in this training", 0.0)
    dear = upgraded({"price_per_gpu_hour": "1 USD/h"}, before, option(9 * DAY, 101.0))
    assert (dear.pays, dear.payback_s) == ("never", None)


def test_what_saves_nothing_never_pays(option):
    same = upgraded({"price": "1 USD"}, option(DAY, 10.0), option(DAY, 10.0))
    assert (same.pays, same.saved, same.payback_s) == ("never", 0.0, None)


def test_a_purchase_may_end_before_its_upgrade_is_paid(option):
    one = bought()
    assert life_s(one) == pytest.approx(2 * 365.25 * DAY)
    before, after = option(10 * DAY, 100.0), option(9 * DAY, 90.0)  # 10 USD every 9 days
    late = upgraded({"price": "900 USD"}, before, after, one)
    assert late.payback_s == pytest.approx(810 * DAY)
    assert late.pays == "not in its life"
    assert upgraded({"price": "800 USD"}, before, after, one).pays == "later"


def test_soonest_paid_back_comes_first(option):
    before = option(10 * DAY, 100.0)
    cheap = upgraded({"price": "30 USD"}, before, option(8 * DAY, 80.0))
    dear = upgraded({"price": "90 USD"}, before, option(8 * DAY, 80.0))
    useless = upgraded({"price": "1 USD"}, before, before)
    assert ranked([useless, dear, cheap]) == (cheap, dear, useless)


@anything
@given(st.floats(1, 1e6), st.floats(0.01, 0.99), st.floats(1, 1e6), st.floats(1.01, 10))
def test_a_dearer_upgrade_never_pays_back_sooner(option, cost, kept, price, more):
    before, after = option(10 * DAY, cost), option(10 * DAY * kept, cost * kept)
    first, second = (
        upgraded({"price": f"{amount!r} USD"}, before, after) for amount in (price, price * more)
    )
    assert first.payback_s < second.payback_s
    assert first.saved == second.saved
