"""DLRM: tables of categories and perceptrons that recommend, tensors of its authors' code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle, pairwise

from perfmodel.errors import refuse_if
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.shapes import MatrixProduct
from perfmodel.workload.layer_calls import Calls, LayerCall
from perfmodel.workload.model import ELEMENT_BYTES, ITEM_BYTES, Layer, Sample, Workload
from perfmodel.workload.shard import WHOLE, Shard
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.layers import INDEX_BYTES, Module, assemble, linear, with_work
from perfmodel.workload.zoo.published import published_sizes
from perfmodel.workload.zoo.transformer import embedding

NOTE = (
    "Its tables are where parallel.tables says. By default each GPU has all, with dense gradients, "
    "as DistributedDataParallel reduces them unless they are sparse. Shared out as TorchRec does "
    "it, the kernel of their backward updates rows by SGD, which leaves no gradient of a table and "
    "no states, and indices and vectors travel exposed, as without its pipeline of batches. Remote "
    "ones are asked for rows by RPC, once all ranks are there, and a host waits for them; servers "
    "update rows by SGD."
)


def dlrm(
    name: str,
    *,
    dtype: str,
    rows: Sequence[int],
    bottom: Sequence[int],
    top: Sequence[int],
    shard: Shard = WHOLE,
) -> Workload:
    """Recommendation model of Naumov et al. 2019 (arXiv 1906.00091).

    The result of the perceptron of numbers and a row of each table are multiplied pair by pair;
    another perceptron maps products and that result to a probability.
    """
    width, vectors = bottom[-1], len(rows) + 1
    products = vectors * (vectors - 1) // 2
    numbers = _perceptron("bot_l", bottom)
    scores = _perceptron("top_l", (width + products, *top))
    tables = (
        # a row of each is gathered; its backward writes a gradient of all of it
        [
            _table(place, (count, width), ready=(f"emb_l.{place}.weight",))
            for place, count in enumerate(rows)
        ]
        if shard.expert == 1
        else _shared_tables(rows, width, shard)
    )
    if shard.tables == "remote":
        tables = [
            Module(Layer("emb_l", kernels=0, remote_rows=(len(rows), width * ITEM_BYTES[dtype])))
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
        shard=shard,
    )


def _shared_tables(rows: Sequence[int], width: int, shard: Shard) -> list[Module]:
    """Parts of tables that the fullest rank has; all indices and vectors travel together."""
    parts, ranks = _parts_of_tables(rows, width, shard), shard.expert
    asked = {
        "table": -(-len(rows) // ranks) * ranks / len(parts),  # of who has most to look up
        "row": (1 + ranks) / 2,  # reads its own rows, and writes a sum for each bag of all ranks
        "column": float(ranks),
    }
    there, home = _travel(len(rows), width, shard)
    return [
        _table(
            place,
            shape,
            vectors=asked[shard.tables or "row"],
            calls=there * (at == 0) + home * (at == len(parts) - 1),
        )
        for at, (place, shape) in enumerate(parts.items())
    ]


def _parts_of_tables(rows: Sequence[int], width: int, shard: Shard) -> dict[int, tuple[int, int]]:
    """Rows and columns of each table that the fullest rank has.

    Whole tables are dealt out by size, to and fro, so that all have as many.
    """
    ranks = shard.expert
    of_columns = shard.tables == "column"
    allowed = f"1 to {width}, the columns of a table, with tables: column"
    refuse_if(of_columns and ranks > width, "expert", str(ranks), allowed)
    if of_columns:
        return {place: (number, -(-width // ranks)) for place, number in enumerate(rows)}
    if shard.tables == "row":
        return {place: (-(-number // ranks), width) for place, number in enumerate(rows)}
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    largest_first = sorted(range(len(rows)), key=lambda place: -rows[place])
    for own, place in zip(cycle((*dealt, *reversed(dealt))), largest_first, strict=False):
        own.append(place)
    fullest = max(dealt, key=lambda own: sum(rows[place] for place in own))
    return {place: (rows[place], width) for place in fullest}


def _travel(tables: int, width: int, shard: Shard) -> tuple[Calls, Calls]:
    """Calls before the first table and after the last one, there and home.

    As TorchRec's ``dist_data.py``: the sizes of what follows (so few that one a sample stands for
    them), lengths of bags, indices; then vectors, and their gradients in backward. Those with rows
    of all tables get lengths of all bags and sum up what all ask for; those with columns get all
    indices, too.
    """
    ranks, by_rows = shard.expert, shard.tables == "row"
    lengths = tables * (1 if shard.tables == "table" else ranks)
    indices = tables * (ranks if shard.tables == "column" else 1)
    vectors = float(tables * width * (ranks if by_rows else 1))
    there = tuple(
        LayerCall("expert", "all_to_all", float(each), ranks, "forward", "before", dtype="int64")
        for each in (1, lengths, indices)
    )
    return there, (
        LayerCall(
            "expert",
            "reduce_scatter" if by_rows else "all_to_all",
            vectors,
            ranks,
            "forward",
            "after",
            dtype="fp32",
        ),
        LayerCall(
            "expert",
            "all_gather" if by_rows else "all_to_all",
            vectors,
            ranks,
            "backward",
            "before",
            dtype="fp32",
        ),
    )


def _table(
    place: int,
    shape: tuple[int, int],
    *,
    vectors: float = 1.0,
    ready: tuple[str, ...] = (),
    calls: tuple[LayerCall, ...] = (),
) -> Module:
    """Gather rows of a table.

    An index, where its bag of one begins, the bag of each index and the size of each bag are kept.

    `vectors`: gathered for each sample of a rank.
    """
    part = embedding(
        f"emb_l.{place}",
        ((f"emb_l.{place}.weight", shape),),
        ready,
        vector_elements=passes_of("activation") * shape[1] * vectors,
        saved_bytes=4.0 * INDEX_BYTES * vectors,
        kernels=1,
        calls=calls,
    )
    return part if ready else with_work(part, weight_elements=0.0)


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
