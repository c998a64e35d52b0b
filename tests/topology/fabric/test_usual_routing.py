"""Which routing a fabric has where nobody says."""

from pathlib import Path

import pytest

from perfmodel.topology.fabric.fabric import resolve_fabric
from perfmodel.topology.templates.build import build_topology, with_usual_routing
from perfmodel.topology.templates.spec import FabricSpec


@pytest.mark.parametrize(
    ("node", "kind", "routing"),
    [
        ("dgx-a100", "fat-tree", "adaptive"),
        ("dgx-h100", "leaf-spine", "adaptive"),
        ("dgx-h100", "one-switch", None),
        ("oci-a100", "fat-tree", None),
        ("aws-p4d", "leaf-spine", None),
    ],
)
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


@pytest.mark.parametrize(
    ("node", "stated", "routing"),
    [
        ("dgx-a100", "", "adaptive"),
        ("dgx-a100", "routing: ecmp", "ecmp"),
        ("dgx-a100", "routing: rail", "rail"),
        ("ethernet-100g", "", "ecmp"),
        ("ethernet-100g", "routing: adaptive", "adaptive"),
    ],
)
def test_a_fabric_in_a_file_routes_as_a_shape_does(node, stated, routing, tmp_path):
    """Only the name of who describes it differs; what it states holds, with its sources."""
    shipped = Path(__file__).parents[3] / "topologies" / "fabrics" / "leaf-spine.yaml"
    file = tmp_path / "own.yaml"
    file.write_text(shipped.read_text().replace("  radix: 40\n", f"  radix: 40\n  {stated}\n"))
    fabric = resolve_fabric(with_usual_routing(node, str(file)))
    assert fabric.spec.routing == routing
    assert fabric.sources == resolve_fabric("leaf-spine").sources
    assert "given in the scenario" not in fabric.sources.values()
