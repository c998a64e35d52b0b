"""DLRM: tables of categories and perceptrons that recommend, tensors of its authors' code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from perfmodel.workload.kernels.shapes import MatrixProduct
from perfmodel.workload.model import Layer, Workload
from perfmodel.workload.sample import Sample
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ELEMENT_BYTES,
    INDEX_BYTES,
    Module,
    assemble,
    linear,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import embedding


@dataclass(frozen=True, slots=True)
class DlrmShape:
    """Rows of the tables, and widths of the perceptrons below and above the interaction."""

    rows: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]


DLRM_SHAPES: Mapping[str, DlrmShape] = {
    "dlrm-criteo-kaggle": DlrmShape(
        (
            1460,
            583,
            10131227,
            2202608,
            305,
            24,
            12517,
            633,
            3,
            93145,
            5683,
            8351593,
            3194,
            27,
            14992,
            5461306,
            10,
            5652,
            2173,
            4,
            7046547,
            18,
            15,
            286181,
            105,
            142572,
        ),
        (13, 512, 256, 64, 16),
        (512, 256, 1),
    ),
    "dlrm-criteo-1tb": DlrmShape(
        (
            39884406,
            39043,
            17289,
            7420,
            20263,
            3,
            7120,
            1543,
            63,
            38532951,
            2953546,
            403346,
            10,
            2208,
            11938,
            155,
            4,
            976,
            14,
            39979771,
            25641295,
            39664984,
            585935,
            12972,
            108,
            36,
        ),
        (13, 512, 256, 128),
        (1024, 1024, 512, 256, 1),
    ),
}
"""facebookresearch/dlrm: bench/dlrm_s_criteo_kaggle.sh; MLPerf training v0.7, whose indices are cut
at 40 million."""

NOTE = (
    "Its tables are taken to be data parallel with dense gradients, as DistributedDataParallel "
    "reduces them unless they are sparse; large trainings split the tables among GPUs."
)


def dlrm(name: str, *, dtype: str) -> Workload:
    """Recommendation model of Naumov et al. 2019 (arXiv 1906.00091).

    The result of the perceptron of numbers and a row of each table are multiplied pair by pair;
    another perceptron maps products and that result to a probability.
    """
    shape = DLRM_SHAPES[name]
    width, vectors = shape.bottom[-1], len(shape.rows) + 1
    products = vectors * (vectors - 1) // 2
    bottom = _perceptron("bot_l", shape.bottom)
    tables = [_table(f"emb_l.{place}", rows, width) for place, rows in enumerate(shape.rows)]
    top = _perceptron("top_l", (width + products, *shape.top))
    registered = [each for part in (*tables, *bottom, *top) for each in part.parameters]
    return assemble(
        name,
        [*bottom, *tables, _interaction(vectors, width, products), *top],
        dtype=dtype,
        sample=Sample("row"),
        source="facebookresearch/dlrm; Naumov et al. 2019, arXiv 1906.00091",
        input_elements=float(shape.bottom[0] + len(shape.rows)),
        output_elements=1.0,
        registered=registered,
        notes=(NOTE,),
    )


def _perceptron(prefix: str, widths: tuple[int, ...]) -> list[Module]:
    """Maps with ReLU, or a sigmoid after the last of the top one, at every second place."""
    return [
        linear(
            f"{prefix}.{2 * place}",
            1,
            inputs,
            outputs,
            parameters=weight_and_bias(f"{prefix}.{2 * place}", outputs, inputs),
            vector_elements=float(ACTIVATION_PASSES * outputs),
            fused_elements=float(ACTIVATION_PASSES * outputs),
            saved_elements=float(outputs + (place == 0) * inputs),
            kernels=2,
        )
        for place, (inputs, outputs) in enumerate(pairwise(widths))
    ]


def _table(name: str, rows: int, width: int) -> Module:
    """Look one row up, as the sum of a bag of one.

    Kept: its index, where its bag begins, the bag of each index, and the size of each bag.
    """
    return embedding(
        name,
        ((f"{name}.weight", (rows, width)),),
        (f"{name}.weight",),
        vector_elements=float(ACTIVATION_PASSES * width),
        saved_bytes=4.0 * INDEX_BYTES,
        kernels=1,
    )


def _interaction(vectors: int, width: int, products: int) -> Module:
    """Put all vectors together, multiply each pair, and take the products of different ones."""
    joined = vectors * width
    moved = float(ELEMENT_BYTES * (2 * joined + 2 * products + 2 * (width + products)))
    product = MatrixProduct(vectors, vectors, width, of_activations=True)
    return Module(
        Layer(
            "interaction",
            matmul_flops=product.flops,
            matrix=product,
            vector_bytes=moved,
            matmul_bytes=float(ELEMENT_BYTES * (2 * joined + vectors**2)),
            fused_bytes=moved,
            # autocast casts the vectors and their transpose, each by itself
            saved_elements=float(joined),
            copied_elements=float(joined),
            kernels=4,
            fused_kernels=3,
        )
    )
