"""Money and energy against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.scenario import (
    CandidateSection,
    PowerSection,
)
from perfmodel.studies.plan.model import Training
from perfmodel.studies.plan.time_to_train import compute_cost, node_W

HOUR = 3600.0


def training(wall_s, interval=None, steps=1):
    return Training(1.0, steps, wall_s, wall_s, interval, 1.0)


def rented(price="2 USD/h", **more):
    return CandidateSection(name="r", node="n", nodes=[1], price_per_gpu_hour=price, **more)


def bought(**more):
    purchase = {"price_per_node": "70_128 USD", "years": 4.0, "utilisation": 0.5} | more
    return CandidateSection(
        name="b",
        node="n",
        nodes=[1],
        purchase=purchase,
        power={"per_node": "5 kW", "pue": 1.2, "energy_price": "0.10 USD/kWh"},
    )


def test_a_rent_by_hand():
    trained = training(10 * HOUR, (9 * HOUR, 12 * HOUR), steps=1000)
    sums = compute_cost(rented(), trained, nodes=4, gpus_per_node=8, gpu_W=400.0)
    assert sums.total == pytest.approx(4 * 8 * 2.0 * 10)  # 640 USD
    assert sums.interval == pytest.approx((576.0, 768.0))
    assert sums.per_step == pytest.approx(0.64)
    assert sums.power_W == 4 * 8 * 400
    assert sums.energy_kWh == pytest.approx(128.0)  # 12.8 kW for 10 h, and in the rent
    assert sums.energy == 0
    assert sums.outlay is None


def test_a_purchase_by_hand():
    # 4 years of 8766 h, half of them used: 17,532 h, so 4 USD per node and hour.
    trained = training(100 * HOUR, steps=10)
    sums = compute_cost(bought(), trained, nodes=2, gpus_per_node=8, gpu_W=None)
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
    sums = compute_cost(one, training(HOUR), nodes=1, gpus_per_node=8, gpu_W=100.0)
    assert (sums.total, sums.per_step, sums.energy_kWh) == (None, None, pytest.approx(0.8))


@given(st.floats(0.01, 100), st.floats(1, 1e8), st.integers(1, 500), st.floats(1.1, 10))
def test_cost_grows_with_price_time_and_nodes(price, wall_s, nodes, more):
    def cost(price=price, wall_s=wall_s, nodes=nodes, rent=0.0):
        candidate = rented(f"{price!r} USD/h")
        hardware = {"nodes": nodes, "gpus_per_node": 8, "gpu_W": 1.0}
        return compute_cost(candidate, training(wall_s), **hardware, more_rent=rent).total

    assert cost(price=2 * price) == pytest.approx(2 * cost())
    assert cost(wall_s=more * wall_s) == pytest.approx(more * cost())
    assert cost(nodes=2 * nodes) == pytest.approx(2 * cost())
    assert cost(rent=price) == pytest.approx(2 * cost())
