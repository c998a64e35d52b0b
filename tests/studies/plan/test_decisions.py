"""Answers and upgrades: against cases worked out by hand, and against all other options."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.scenario import (
    CandidateSection,
    UpgradeSection,
)
from perfmodel.studies.plan.decisions import (
    choose_answers,
    compare_upgrade,
    life_s,
    pareto_front,
    rank_upgrades,
    smallest_by_deadline,
    sure_fits,
)

DAY = 86400.0
RENTED = CandidateSection(name="r", node="n", nodes=[1], price_per_gpu_hour="2 USD/h")
BOUGHT = CandidateSection(
    name="b",
    node="n",
    nodes=[1],
    purchase={"price_per_node": "70_128 USD", "years": 4.0, "utilisation": 0.5},
)

anything = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_answers_by_hand(option):
    slow, even, fast, dear = (
        option(10 * DAY, 100.0, 8),
        option(5 * DAY, 110.0, 16),
        option(2 * DAY, 150.0, 32),
        option(2 * DAY, 200.0, 16),
    )
    found = choose_answers([slow, even, fast, dear], 6 * DAY, 120.0)
    assert found.smallest_in_time is even, "of 16 GPUs each the cheaper one"
    assert found.cheapest_in_time is even
    assert found.fastest_in_budget is even
    assert (found.fastest, found.cheapest) == (fast, slow)
    assert found.pareto == (fast, even, slow)
    assert found.ladder == (slow, dear), "smallest first, each quicker than all before"
    nothing = choose_answers([slow], 6 * DAY, 50.0)
    assert nothing.smallest_in_time is nothing.cheapest_in_time is nothing.fastest_in_budget is None
    unasked = choose_answers([slow, fast], None, None)
    assert unasked.smallest_in_time is unasked.fastest_in_budget is None


def test_unpriced_options_are_fast_or_small_and_nothing_else(option):
    free, priced = option(DAY, None), option(2 * DAY, 5.0)
    found = choose_answers([free, priced], 3 * DAY, 100.0)
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
    front = pareto_front(options)

    def beaten(one):
        return any(
            other.wall_s <= one.wall_s
            and other.cost <= one.cost
            and (other.wall_s, other.cost) != (one.wall_s, one.cost)
            for other in options
        )

    assert sorted(map(id, front)) == sorted(id(one) for one in options if not beaten(one))
    assert all(a.wall_s <= b.wall_s for a, b in itertools.pairwise(front))


@anything
@given(many, st.integers(1, 6))
def test_the_ladder_answers_every_deadline(option, numbers, deadline):
    options = [option(float(t), float(c), g) for t, c, g in numbers]
    steps = [one for one in smallest_by_deadline(options) if one.wall_s <= deadline]
    wanted = choose_answers(options, float(deadline), None).smallest_in_time
    assert (steps[0].gpus if steps else None) == (wanted.gpus if wanted else None)


@anything
@given(many, st.integers(1, 6), st.integers(1, 6))
def test_answers_keep_what_they_promise(option, numbers, deadline, budget):
    options = [option(float(t), float(c), g) for t, c, g in numbers]
    found = choose_answers(options, float(deadline), float(budget))
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
    return compare_upgrade(upgrade, candidate or RENTED, before, after)


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
    assert life_s(BOUGHT) == pytest.approx(2 * 365.25 * DAY)
    before, after = option(10 * DAY, 100.0), option(9 * DAY, 90.0)  # 10 USD every 9 days
    late = upgraded({"price": "900 USD"}, before, after, BOUGHT)
    assert late.payback_s == pytest.approx(810 * DAY)
    assert late.pays == "not in its life"
    assert upgraded({"price": "800 USD"}, before, after, BOUGHT).pays == "later"


def test_soonest_paid_back_comes_first(option):
    before = option(10 * DAY, 100.0)
    cheap = upgraded({"price": "30 USD"}, before, option(8 * DAY, 80.0))
    dear = upgraded({"price": "90 USD"}, before, option(8 * DAY, 80.0))
    useless = upgraded({"price": "1 USD"}, before, before)
    assert rank_upgrades([useless, dear, cheap]) == (cheap, dear, useless)


@anything
@given(st.floats(1, 1e6), st.floats(0.01, 0.99), st.floats(1, 1e6), st.floats(1.01, 10))
def test_a_dearer_upgrade_never_pays_back_sooner(option, cost, kept, price, more):
    before, after = option(10 * DAY, cost), option(10 * DAY * kept, cost * kept)
    first, second = (
        upgraded({"price": f"{amount!r} USD"}, before, after) for amount in (price, price * more)
    )
    assert first.payback_s < second.payback_s
    assert first.saved == second.saved


def test_what_is_tight_is_no_answer_unless_nothing_else_fits(option):
    sure, tight = option(2.0, 2.0), option(1.0, 1.0, name="b")
    tight = replace(tight, step=replace(tight.step, tight=True))
    assert sure_fits([sure, tight]) == [sure]
    assert sure_fits([tight]) == [tight]
    assert choose_answers(sure_fits([sure, tight]), None, None).fastest is sure
