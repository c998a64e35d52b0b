"""AmoebaNet-D against torchgpipe's own module and tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pytest

from perfmodel.workload.memory.blocks import repeated_blocks
from reports.validation.strategies.amoebanet import amoebanet
from tests.activations import activation_bytes

# benchmarks/models/amoebanet of kakaobrain/torchgpipe, built on PyTorch's meta device: parameters,
# tensors, a digest of their names and shapes; layers and filters.
TENSORS = {
    (18, 208): (81505540, 831, "49c12b56426e05b5"),
    (18, 256): (122470120, 831, "2002e4575977e3dc"),
    (18, 416): (319024120, 831, "887cc01d91e22d9e"),
    (18, 544): (542734840, 831, "a14ef289d2749535"),
    (36, 544): (1055832376, 1533, "006914773415a269"),
    (72, 512): (1844858344, 2937, "58a36ff6c1608380"),
}
# Millions of parameters: torchgpipe's docs/benchmarks.rst, as table 1 of arXiv 1811.06965.
MILLIONS = {(18, 208): 81.5, (18, 416): 319.0, (18, 544): 542.7, (36, 544): 1060, (72, 512): 1840}


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@pytest.mark.parametrize("sizes", TENSORS)
def test_tensors_are_those_of_the_module(sizes: tuple[int, int]) -> None:
    workload = amoebanet(*sizes)
    lines = [f"{t.name}:{'x'.join(map(str, t.shape))}" for t in workload.tensors]
    assert (workload.parameters, len(lines), digest(lines)) == TENSORS[sizes]
    if sizes in MILLIONS:
        assert workload.parameters / 1e6 == pytest.approx(MILLIONS[sizes], rel=0.005)


def test_what_a_step_of_the_module_does() -> None:
    """Order of gradients, multiply-accumulates, buffers; kept bytes of an image in fp32.

    Saved-tensor hooks around the real module count 356,692,224 bytes.
    """
    workload = amoebanet(18, 256)
    ready = (workload.tensors[i].name for i in workload.ready_order)
    assert digest(ready) == "4a5008763285ef7f"
    assert sum(layer.matmul_flops for layer in workload.layers) / 2e9 == pytest.approx(
        15.170, rel=2e-3
    )
    assert workload.buffer_bytes == 829848
    assert activation_bytes(workload, 1, "fp32") == pytest.approx(356_692_224, rel=0.01)


def test_cells_are_blocks_that_hand_two_maps_on() -> None:
    """Stems and cells, as torchgpipe deals them out; each hands on its output and its input."""
    workload = amoebanet(18, 256)
    blocks = repeated_blocks(workload)
    assert len(blocks) == 3 + 3 * 6 + 2
    last = [workload.layers[block[-1]] for block in blocks]
    assert last[0].output_elements == 64 * 112**2
    assert last[1].output_elements == 3 * 128 * 56**2 + 64 * 112**2
    assert last[4].output_elements == 2 * 4 * 256 * 28**2
