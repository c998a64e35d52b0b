"""Multi-token prediction of DeepSeek-V3: tensors, operations, gradients, refusals."""

from __future__ import annotations

import pytest

from perfmodel.workload import Workload
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.expert_decoder import expert_decoder
from perfmodel.workload.zoo.expert_settings import ExpertSettings

TOKENS, WIDTH, WORDS = 128, 7168, 129_280
SECOND = ExpertSettings(second_token=True)


def deepseek(settings: ExpertSettings | None = None, shard: Shard | None = None) -> Workload:
    return expert_decoder(
        "deepseek-v3",
        dtype="bf16",
        sequence_length=TOKENS,
        settings=settings,
        **({} if shard is None else {"shard": shard}),
    )


def elements(workload: Workload) -> int:
    return sum(tensor.numel for tensor in workload.tensors)


def test_it_has_the_parameters_that_deepseek_counts() -> None:
    """README_WEIGHTS.md of deepseek-ai/DeepSeek-V3: 671B; 11.5B beside the shared 0.9B and 0.9B.

    The checkpoint holds table and head again: 685B (its page on huggingface.co).
    """
    plain, whole = elements(deepseek()), elements(deepseek(SECOND))
    assert plain == pytest.approx(671e9, abs=0.5e9)
    assert whole - plain == pytest.approx(11.5e9, rel=0.01)
    assert whole + 2 * WORDS * WIDTH == pytest.approx(685e9, abs=0.6e9)


def test_its_tensors_are_those_of_the_checkpoint() -> None:
    """Those of model.layers.61 that are not shared: a block, three norms, a map."""
    added = deepseek(SECOND).tensors[len(deepseek().tensors) :]
    shapes = {tensor.name.removeprefix("model.layers.mtp."): tensor.shape for tensor in added}
    assert shapes["eh_proj.weight"] == (WIDTH, 2 * WIDTH)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        assert shapes[f"{norm}.weight"] == (WIDTH,)
    block = [t for t in deepseek().tensors if t.name.startswith("model.layers.60.")]
    names = {t.name.removeprefix("model.layers.60."): t.shape for t in block}
    assert names.items() <= shapes.items()
    assert len(shapes) == len(names) + 4


def test_products_are_those_of_its_maps() -> None:
    """Those of a block, the joined map, and the head once more."""
    plain, whole = deepseek(), deepseek(SECOND)
    flops = [sum(layer.matmul_flops for layer in each.layers) for each in (plain, whole)]
    last = [layer for layer in plain.layers if layer.name.startswith("model.layers.60.")]
    block = sum(layer.matmul_flops for layer in last)
    maps = 2 * TOKENS * WIDTH * (2 * WIDTH + WORDS)
    assert flops[1] - flops[0] == pytest.approx(block + maps)


def test_the_heads_gradient_is_complete_when_both_have_run() -> None:
    """Backward of the second token comes first, so that the first head's finishes the weight."""
    whole = deepseek(SECOND)
    head = next(i for i, tensor in enumerate(whole.tensors) if tensor.name == "lm_head.weight")
    places = [place for place, layer in enumerate(whole.layers) if head in layer.tensors]
    assert [whole.layers[place].name for place in places] == ["lm_head"]
    assert sorted(whole.ready_order) == list(range(len(whole.tensors)))


def test_ranks_of_a_tensor_group_share_the_joined_map() -> None:
    """By columns, with the tokens of all: Megatron-Core's ``multi_token_prediction.py``.

    Embeddings and both norms' results are of a rank's own tokens. Forward: the table's result is
    scattered, the map's input gathered, its columns joined; backward in reverse, where a cut by
    columns needs no call.
    """
    shard = Shard(tensor=4, sequence_parallel=True, library="megatron")
    layer = next(each for each in deepseek(SECOND, shard).layers if "eh_proj" in each.name)
    assert layer.matrix is not None
    assert layer.matmul_flops == 2 * TOKENS * (2 * WIDTH) * WIDTH / 4
    sent = [(call.phase, call.op, call.elements) for call in layer.calls]
    whole = TOKENS * WIDTH
    assert sorted(sent) == sorted(
        [
            ("forward", "reduce_scatter", whole),
            ("forward", "all_gather", 2 * whole),
            ("forward", "all_gather", whole),
            ("backward", "all_gather", whole),
            ("backward", "all_gather", 2 * whole),
            ("backward", "reduce_scatter", 2 * whole),
            ("backward", "all_gather", whole),
            ("step", "all_reduce", 2 * WIDTH),
        ]
    )
    shares = [elements(deepseek(each, shard)) for each in (SECOND, ExpertSettings())]
    alone = [elements(deepseek(each)) for each in (SECOND, ExpertSettings())]
    assert shares[0] - shares[1] < alone[0] - alone[1]


def test_receivers_cast_what_travels_in_fp8_back() -> None:
    """Each row that arrives is read in fp8 and written in bf16: 1.5 passes, as the cast before."""
    shard = Shard(expert=64, library="megatron")
    work = []
    for dtype in (None, "fp8"):
        how = ExpertSettings(dispatch_dtype=dtype, dispatcher="all_to_all")  # type: ignore[arg-type]
        layers = deepseek(how, shard).layers
        widen = next(each for each in layers if "experts.gate_up_proj" in each.name)
        work.append(widen.vector_bytes)
    rows = 8 * TOKENS
    assert work[1] - work[0] == pytest.approx(4 * 1.5 * (TOKENS + rows) * WIDTH)
