"""Changes of hardware: network adapters, oversubscription, routing, and the plan's upgrades."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.scenario import ClusterSize, Scenario, UpgradeSection
from perfmodel.scenario.sections.plan import Money
from perfmodel.studies.advise.model import Proposed
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.spec import NodeSpec, nic_ports

GBIT_Bps = 1e9 / 8
ADAPTERS_GBIT = (1, 10, 25, 50, 100, 200, 400, 800)
"""Rates of Ethernet and InfiniBand adapters that are sold: IEEE 802.3by to df, NVIDIA's ConnectX-4
to ConnectX-8 data sheets."""
TIMES = (2, 4)
"""How many times the present rate is offered, at least."""
NO_PRICE = "the price of the adapters, their ports and cables"


def find_adapter(node: NodeSpec | Topology) -> tuple[float | None, int]:
    """Rate of a network adapter by its data sheet, in bytes per second, and how many a node has.

    None where a graph stands for the node, which says what links carry, and not what is sold.
    """
    ports = () if isinstance(node, Topology) else nic_ports(node)
    return (ports[0].bandwidth, len(ports)) if ports else (None, 0)


def list_upgrades(
    scenario: Scenario, node: NodeSpec | Topology, size: ClusterSize, routing: float
) -> Iterator[Proposed]:
    """List hardware that could be had instead.

    `routing`: times as long as the largest all-reduce takes without collisions in the fabric.
    """
    if size.nodes > 1 and not isinstance(node, Topology):
        yield from _adapters(scenario, node)
        yield from _fabric(scenario, node, routing)
    if not isinstance(node, Topology) and node.power_limit is not None:
        full_W = load_gpu(node.gpu).power_W
        fields = {"cluster.node.power_limit": f"{full_W:g} W"}
        note = "power and cooling of the racks"
        text = f"boards at their {full_W:g} W"
        yield Proposed(text, fields, "power", "hardware", note, is_plural=True)
    yield from _planned(scenario, size)


POWER_SHARES = (0.85, 0.7, 0.55)
"""Limits on the boards' power that are tried, of their data sheet's; above the least of the law."""


def list_power_limits(scenario: Scenario, node: NodeSpec | Topology) -> Iterator[Proposed]:
    """List limits below the present one, where times follow from the GPU's rates."""
    if isinstance(node, Topology):
        return
    compute, full_W = scenario.compute, load_gpu(node.gpu).power_W
    stated = compute.source != "roofline" or compute.measured_step is not None
    if stated or scenario.cluster.mixed or full_W is None:
        return
    for share in POWER_SHARES:
        limit_W = 10 * round(share * full_W / 10)
        if limit_W < (node.power_limit or full_W):
            fields = {"cluster.node.power_limit": f"{limit_W:g} W"}
            text = f"boards limited to {limit_W:g} W"
            yield Proposed(
                text, fields, "power", "hardware", limit_W=float(limit_W), is_plural=True
            )


def _adapters(scenario: Scenario, node: NodeSpec) -> Iterator[Proposed]:
    rate_Bps, count = find_adapter(node)
    if rate_Bps is None:
        return
    own = 1.0 if scenario.what_if is None else scenario.what_if.network_bandwidth
    offered = []
    for times in TIMES:
        larger = (each for each in ADAPTERS_GBIT if each * GBIT_Bps >= 0.99 * times * rate_Bps)
        offered.append(next(larger, None))
    for gbit in dict.fromkeys(offered):
        if gbit is None:
            continue
        several = f"{count} x " if count > 1 else ""
        factor = own * gbit * GBIT_Bps / rate_Bps
        fields = {"what_if.network_bandwidth": factor}
        text = f"{several}{gbit} Gbit/s adapters and switches"
        yield Proposed(text, fields, "network adapter", "hardware", NO_PRICE, is_plural=True)


def _fabric(scenario: Scenario, node: NodeSpec, routing: float) -> Iterator[Proposed]:
    fabric = scenario.cluster.fabric
    if fabric is None:
        return
    if fabric.kind in ("leaf-spine", "fat-tree") and len(nic_ports(node)) > 1:
        note = "other cables: each adapter of a server to a leaf of its own"
        fields: dict[str, object] = {"cluster.fabric": "rail-optimised"}
        yield Proposed("rail-optimised fabric", fields, "fabric", "hardware", note)
    if (fabric.oversubscription or 1.0) > 1.0:
        note = "the price of more uplinks and spine switches"
        fields = {"cluster.fabric.oversubscription": 1.0}
        yield Proposed("no oversubscription", fields, "fabric", "hardware", note)
    if routing > 1.0 and fabric.routing != "adaptive":
        note = "switches and adapters that can"
        fields = {"cluster.fabric.routing": "adaptive"}
        yield Proposed("adaptive routing", fields, "routing", "hardware", note)


def _planned(scenario: Scenario, size: ClusterSize) -> Iterator[Proposed]:
    """Upgrades of the scenario's plan, at their prices; not those of other nodes."""
    plan = scenario.plan
    if plan is None:
        return
    own = {each.name for each in plan.candidates if each.node == scenario.cluster.node}
    for upgrade in plan.upgrades:
        if upgrade.candidates is not None and own.isdisjoint(upgrade.candidates):
            continue
        fields = {
            name: value
            for name, value in upgrade.set.items()
            if name.partition(".")[0] not in {"plan", "sweep", "scale"}
        }
        if fields:
            price, rent = _prices(upgrade, size)
            yield Proposed(
                upgrade.name,
                fields,
                "upgrade",
                "hardware",
                "its price is not stated" if price is None and rent is None else "",
                price,
                rent,
            )


def _prices(upgrade: UpgradeSection, size: ClusterSize) -> tuple[Money | None, Money | None]:
    """Price once, and more of the rent of each hour, of the whole cluster."""
    if upgrade.price is not None:
        return upgrade.price, None
    if upgrade.price_per_node is not None:
        each = upgrade.price_per_node
        return Money(each.amount * size.nodes, each.currency), None
    if upgrade.price_per_gpu_hour is not None:
        each = upgrade.price_per_gpu_hour
        return None, Money(each.amount * size.gpus, each.currency)
    return None, None


def hourly_price(scenario: Scenario, size: ClusterSize) -> Money | None:
    """Price of an hour of the cluster, where the plan has one for such nodes."""
    for candidate in () if scenario.plan is None else scenario.plan.candidates:
        if candidate.node == scenario.cluster.node and candidate.price_per_gpu_hour is not None:
            each = candidate.price_per_gpu_hour
            return Money(each.amount * size.gpus, each.currency)
    return None
