"""Cost and energy of a training."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.scenario import CandidateSection, PowerSection
from perfmodel.studies.plan.model import Cost, Interval

HOURS_PER_YEAR = 365.25 * 24
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Rates:
    """Cost per hour and power of a cluster, in the plan's currency.

    `machines`: rent, or the purchase over the hours in which it is used.
    `energy_per_kWh`: 0 where none is charged.
    `power_W`: with the building's losses.
    """

    machines: float | None
    energy_per_kWh: float
    power_W: float | None
    outlay: float | None


def compute_rates(
    candidate: CandidateSection,
    *,
    nodes: int,
    gpus_per_node: int,
    gpu_W: float | None,
    more_rent: float = 0.0,
) -> Rates:
    """Return the cost per hour and the power of a candidate at one size.

    `nodes`, `gpus_per_node`: as they are used; a node is bought and powered as a whole.
    `gpu_W`: data-sheet power of one GPU; watts.
    `more_rent`: per GPU and hour, for an upgrade.
    """
    machines, outlay = None, None
    if candidate.price_per_gpu_hour is not None:
        machines = nodes * gpus_per_node * candidate.price_per_gpu_hour.amount
    if candidate.purchase is not None:
        bought = candidate.purchase
        outlay = nodes * bought.price_per_node.amount
        machines = outlay / (bought.years * HOURS_PER_YEAR * bought.utilisation)
    if machines is not None:
        machines += nodes * gpus_per_node * more_rent
    power = candidate.power or PowerSection()
    price = 0.0 if power.energy_price is None else power.energy_price.amount
    drawn = node_W(power, gpus_per_node, gpu_W)
    whole = None if drawn is None else nodes * drawn * power.pue
    return Rates(machines, price, whole, outlay)


def node_W(power: PowerSection, gpus_per_node: int, gpu_W: float | None) -> float | None:
    """Return the power of one node under load; watts, None where it is not known."""
    if power.per_node is not None:
        return power.per_node
    each = power.per_gpu or gpu_W
    return None if each is None else gpus_per_node * each * power.factor


def compute_cost(rates: Rates, wall_s: float, interval_s: Interval | None, steps: int) -> Cost:
    """Return the cost of a training.

    `wall_s`: how long the cluster is rented or in use; seconds.
    `interval_s`: of `wall_s`.
    """
    energy_kWh = None if rates.power_W is None else rates.power_W * wall_s / JOULES_PER_KWH
    energy = 0.0 if energy_kWh is None else energy_kWh * rates.energy_per_kWh
    if rates.machines is None:
        return Cost(None, None, None, None, rates.outlay, energy_kWh, rates.power_W)
    machines = rates.machines * wall_s / 3600
    total = machines + energy
    ends = None
    if interval_s is not None:  # every part of the cost grows with the time
        ends = total * interval_s[0] / wall_s, total * interval_s[1] / wall_s
    return Cost(machines, energy, ends, total / steps, rates.outlay, energy_kWh, rates.power_W)
