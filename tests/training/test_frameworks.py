"""Numbers of frameworks: each says where it stands, and PyTorch's are those of the one here."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from perfmodel.files import read_yaml
from perfmodel.training import frameworks
from perfmodel.training.frameworks import fixed_in

TABLE = read_yaml(Path(frameworks.__file__).with_name("frameworks.yaml"))


@pytest.mark.parametrize("framework", sorted(TABLE))
def test_each_number_says_where_it_stands(framework: str) -> None:
    for name, row in TABLE[framework].items():
        assert set(row) == {"value", "source"}, name
        assert row["value"] == fixed_in(framework, name) > 0
        assert row["source"]


def test_pieces_are_those_of_pytorch() -> None:
    comm = pytest.importorskip("torch.nn.parallel.comm")
    init_utils = pytest.importorskip("torch.distributed.fsdp._init_utils")
    assert fixed_in("torch", "broadcast_bytes") == init_utils.PARAM_BROADCAST_BUCKET_SIZE
    default = inspect.signature(comm.broadcast_coalesced).parameters["buffer_size"].default
    assert fixed_in("torch", "data_parallel_bytes") == default


def test_units_of_fsdp_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    limiter = pytest.importorskip("torch.distributed.fsdp._limiter_utils")
    flat = pytest.importorskip("torch.distributed.fsdp._flat_param")
    queue = limiter._FreeEventQueue()
    assert fixed_in("fsdp", "units_in_flight") == queue._max_num_inflight_all_gathers
    for dtype, nbytes in ((torch.float32, 4), (torch.float16, 2)):
        assert fixed_in("fsdp", "aligned_bytes") == nbytes * flat._get_aligned_numel(dtype)


def test_larger_ranks_are_not_orthogonalised_by_gram_schmidt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    hook = pytest.importorskip("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
    ranks = list[int]()
    monkeypatch.setattr(
        hook, "_orthogonalize_gram_schmidt", lambda matrices, **_: ranks.append(matrices.shape[2])
    )
    for rank in (1, 2, 3, 4):
        hook._orthogonalize(torch.ones(1, 8, rank))
    assert max(ranks) == fixed_in("torch", "gram_schmidt_rank")
