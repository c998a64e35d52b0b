"""What is special about networks: several ports, staging, plugins, and who may use which."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.library.channels import rings_over, serving_nics
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.protocols import protocol_parameters
from perfmodel.library.machine import make_machine
from perfmodel.library.model import Variant, load_library
from perfmodel.library.nccl.dispatch import choices, predictions, system_on
from perfmodel.library.settings import LibrarySettings
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, load_node
from perfmodel.topology.templates.spec import NodeSpec

MIB = 1 << 20


def two_ports() -> NodeSpec:
    """DGX H100 with a second port beside each GPU."""
    node = load_node("dgx-h100")
    spec = node.model_dump(by_alias=True)
    for device in spec["nodes"]:
        if device["kind"] == "nic":
            device["id"] = "nic[0-15]"
    for edge in spec["edges"]:
        for end in ("from", "to"):
            if edge[end].startswith("nic"):
                edge[end] = "nic[0-15]"
    links = node.links
    return node.model_copy(
        update={
            "nodes": tuple(type(node.nodes[0]).model_validate(d) for d in spec["nodes"]),
            "edges": tuple(type(node.edges[0]).model_validate(e) for e in spec["edges"]),
            "links": links,
        }
    )


def test_a_gpu_takes_turns_over_the_ports_beside_it() -> None:
    """NCCL's ncclTopoGetLocalNet: ports that are equally near, over the GPUs that share them."""
    topology = build_topology(two_ports(), hosts=2, fabric="one-switch")
    router = Router(topology)
    assert len(serving_nics(router, list(topology.ranks[:8]))) == 16
    rings = rings_over(topology, router, range(16))
    assert len(rings.orders) == 16
    for order in rings.orders.tolist():
        assert sorted(order) == list(range(16))
    ports = np.bincount(rings.edges.arcs, minlength=len(topology.arcs))
    into = [
        int(ports[arc])
        for arc, (src, dst) in enumerate(topology.arcs.names)
        if arc >= topology.first_cable and "/nic" in src
    ]
    assert min(into) == max(into) > 0
    # The last GPU of a ring sits beside the port by which it leaves: nothing crosses a host bridge.
    bridge = np.array(["/cpu" in src + dst for src, dst in topology.arcs.names])
    assert bridge.any()
    assert not ports[bridge].any()


def test_gpus_that_share_their_nics_use_one_each() -> None:
    topology = build_topology("dgx-a100", hosts=2, fabric="rail-optimised")
    router = Router(topology)
    assert len(serving_nics(router, list(topology.ranks[:8]))) == 8
    alone = serving_nics(router, [topology.ranks[0]])
    assert len(alone) == 2, "a GPU whose neighbour is not in the group has both NICs"


def test_devices_beside_a_gpu_are_one_adapter() -> None:
    """16 ports of 200 Gbit/s are eight adapters of 400; a template or not."""
    for network in ("RoCE v2", "InfiniBand"):
        actual = describe(
            "H200-SXM5-141GB",
            gpus=8,
            intra="NVLink4 NVSwitch",
            network=network,
            nics=16,
            nic_Gbps=200,
        )
        topology = build_topology(actual.node, hosts=2, fabric="one-switch")
        out = [
            arc
            for arc, (src, _) in enumerate(topology.arcs.names)
            if arc >= topology.first_cable and src.startswith("n0/nic")
        ]
        assert len(out) == 8
        assert topology.arcs.bandwidth_Bps[out].sum() == pytest.approx(8 * 50e9, rel=0.03)


@pytest.mark.parametrize(("gpu", "factor"), [("V100-PCIE-16GB", 2.0), ("RTX 3090", 1.0)])
def test_staging_costs_its_share_where_a_variant_says_so(gpu: str, factor: float) -> None:
    said = Variant.model_validate(
        {"generations": ["volta"], "networks": ["roce"], "staged_efficiency": 0.5, "source": "test"}
    )
    actual = describe(
        gpu, gpus=1, intra="none", network="RoCE, GPUDirect disabled", nics=1, nic_Gbps=25
    )
    topology = build_topology(actual.node, hosts=2, fabric="one-switch")
    assert not topology.gpudirect_rdma
    sent = []
    for variants in ((), (said,)):
        library = load_library("plain").model_copy(update={"variants": variants})
        (lowered,) = lower_collective(make_machine(topology, library), "all_reduce", MIB, range(2))
        sent.append(lowered.stages[0].phases[0].nbytes.max())
    assert sent[1] / sent[0] == pytest.approx(factor)


def efa(gpu: str, intra: str, nics: int) -> Topology:
    actual = describe(gpu, gpus=8, intra=intra, network="EFA", nics=nics, nic_Gbps=100)
    return build_topology(actual.node, hosts=2, fabric="one-switch")


@pytest.mark.parametrize(("protocol", "times"), [("ll", 1), ("simple", 2)])
def test_the_latency_that_a_plugin_states_counts_once_and_again_for_the_flush(
    protocol: str, times: int
) -> None:
    """Two hosts, a ring of 16: two hops cross the network; 75 us each."""
    topology = efa("H100-SXM5-80GB", "NVLink4 NVSwitch", 32)
    machine = make_machine(topology, load_library("nccl"))
    own = system_on(machine, range(16))
    assert own.net_latency_us == 75

    def tree_us(latency_us: float) -> float:

        system = replace(own, net_latency_us=latency_us)
        actual = predictions(system, "all_reduce", 8, machine.settings)
        return next(
            one.time_s * 1e6
            for one in actual
            if (one.algorithm, one.protocol) == ("tree", protocol)
        )

    assert tree_us(75) - tree_us(0) == pytest.approx(2 * 75 * times)


def test_only_simple_where_writes_are_not_ordered() -> None:
    """aws-ofi-nccl sets NCCL_PROTO=simple there; who names another protocol is believed."""
    old = make_machine(efa("A100-SXM4-40GB", "NVLink3 NVSwitch", 4), load_library("nccl"))
    new = make_machine(efa("H100-SXM5-80GB", "NVLink4 NVSwitch", 32), load_library("nccl"))
    assert {c.protocol for c in choices(old, "all_reduce", 1024, range(16))} == {"simple"}
    assert {"ll", "simple"} < {c.protocol for c in choices(new, "all_reduce", 1024, range(16))}
    named = make_machine(
        old.topology, load_library("nccl"), settings=LibrarySettings(env={"NCCL_PROTO": "LL"})
    )
    assert {c.protocol for c in choices(named, "all_reduce", 1024, range(16))} == {"ll"}


def test_an_operation_may_have_numbers_of_its_own() -> None:
    library = make_machine(build_topology("dgx-a100"), load_library("nccl")).library
    chain = protocol_parameters(library, "reduce", "chain")
    own = {
        name: protocol.model_copy(update={"unevenness": 1.0}) for name, protocol in chain.items()
    }
    update = {"by_algorithm": {**library.by_algorithm, "reduce/chain": own}}
    changed = library.model_copy(update=update)
    assert protocol_parameters(changed, "reduce", "chain")["simple"].unevenness == 1.0
    assert protocol_parameters(changed, "broadcast", "chain") == chain
