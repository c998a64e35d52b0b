"""Which routing a fabric has where nobody says."""

import pytest

from perfmodel.topology.templates.build import build_topology, with_usual_routing
from perfmodel.topology.templates.spec import FabricSpec


@pytest.mark.parametrize(
    ("node", "kind", "routing"),
    [
        ("dgx-a100", "fat-tree", "adaptive"), ("dgx-h100", "leaf-spine", "adaptive"),
        ("dgx-h100", "one-switch", None), ("oci-a100", "fat-tree", None),
        ("aws-p4d", "leaf-spine", None),
    ],
)  # fmt: skip
def test_infiniband_routes_adaptively(node, kind, routing):
    """NCCL user guide: NCCL_IB_ADAPTIVE_ROUTING is 1 on InfiniBand and 0 on RoCE by default."""
    fabric = with_usual_routing(node, kind)
    assert isinstance(fabric, FabricSpec)
    assert fabric.routing == routing


def test_what_is_named_stays():
    hashed = FabricSpec(kind="fat-tree", routing="ecmp")
    assert with_usual_routing("dgx-a100", hashed) is hashed
    assert with_usual_routing("dgx-a100", None) is None


def test_adaptive_routing_loses_nothing_to_collisions():
    """A non-blocking fat tree passes on what hosts send: one way between edge and core."""
    spread = build_topology("dgx-a100", hosts=64, fabric=with_usual_routing("dgx-a100", "fat-tree"))
    assert any("adaptive routing" in note for note in spread.assumptions)
    hashed = build_topology("dgx-a100", hosts=64, fabric="fat-tree")
    assert not any("adaptive routing" in note for note in hashed.assumptions)
