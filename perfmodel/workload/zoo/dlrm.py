"""DLRM: tables of categories and perceptrons that recommend, tensors of its authors' code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.shapes import MatrixProduct
from perfmodel.workload.model import ELEMENT_BYTES, Layer, Sample, Workload
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.layers import INDEX_BYTES, Module, assemble, linear
from perfmodel.workload.zoo.published import published_sizes
from perfmodel.workload.zoo.transformer import embedding

NOTE = (
    "Its tables are taken to be data parallel with dense gradients, as DistributedDataParallel "
    "reduces them unless they are sparse; large trainings split the tables among GPUs."
)


def dlrm(
    name: str, *, dtype: str, rows: Sequence[int], bottom: Sequence[int], top: Sequence[int]
) -> Workload:
    """Recommendation model of Naumov et al. 2019 (arXiv 1906.00091).

    The result of the perceptron of numbers and a row of each table are multiplied pair by pair;
    another perceptron maps products and that result to a probability.
    """
    width, vectors = bottom[-1], len(rows) + 1
    products = vectors * (vectors - 1) // 2
    numbers = _perceptron("bot_l", bottom)
    scores = _perceptron("top_l", (width + products, *top))
    # an index, where its bag of one begins, the bag of each index and the size of each bag are kept
    tables = [
        embedding(
            f"emb_l.{place}",
            ((f"emb_l.{place}.weight", (count, width)),),
            (f"emb_l.{place}.weight",),
            vector_elements=float(passes_of("activation") * width),
            saved_bytes=4.0 * INDEX_BYTES,
            kernels=1,
        )
        for place, count in enumerate(rows)
    ]
    return assemble(
        name,
        [*numbers, *tables, _interaction(vectors, width, products), *scores],
        dtype=dtype,
        sample=Sample("row"),
        source="facebookresearch/dlrm; Naumov et al. 2019, arXiv 1906.00091",
        input_elements=float(bottom[0] + len(rows)),
        output_elements=1.0,
        registered=[each for part in (*tables, *numbers, *scores) for each in part.parameters],
        notes=(NOTE,),
    )


def _perceptron(prefix: str, widths: Sequence[int]) -> list[Module]:
    """Maps with ReLU, or a sigmoid after the last of the top one, at every second place."""
    return [
        linear(
            f"{prefix}.{2 * place}",
            1,
            inputs,
            outputs,
            vector_elements=float(passes_of("activation") * outputs),
            fused_elements=float(passes_of("activation") * outputs),
            saved_elements=float(outputs + (place == 0) * inputs),
            kernels=2,
        )
        for place, (inputs, outputs) in enumerate(pairwise(widths))
    ]


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


MODELS = {
    name: Buildable(name, partial(dlrm, name, **sizes), 1, "row")
    for name, sizes in published_sizes("recommendation")["dlrm"].items()
}
"""Models of the zoo: rows of a table have no size to choose."""
