"""TorchRec's embedding tables, shared out by tables, rows and columns, for `run_cases`.

Tables of DLRM's form: a row of each for every sample, summed up in bags of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.training.recorded.recording_group import CALLS, enter_phase

ROWS, WIDTH, SAMPLES = (64, 128, 192, 256), 64, 6
SETTINGS: dict[str, dict[str, Any]] = {
    kind: {"rows": ROWS, "width": WIDTH, "samples": SAMPLES} for kind in ("table", "row", "column")
}


def case(kind: str) -> None:
    """Look up, sum up and update; the calls of one step are left."""
    import torchrec.distributed.sharding_plan as plans
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import ShardingPlan

    ranks = dist.get_world_size()
    os.environ.update(LOCAL_RANK=str(dist.get_rank()), LOCAL_WORLD_SIZE=str(ranks))
    tables = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=f"t{at}", embedding_dim=WIDTH, num_embeddings=rows, feature_names=[f"f{at}"]
            )
            for at, rows in enumerate(ROWS)
        ],
    )
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.1}
    sharder: Any = EmbeddingBagCollectionSharder(fused_params=fused)
    how = {
        "table": lambda at: plans.table_wise(rank=at % ranks),
        "row": lambda _: plans.row_wise(),
        "column": lambda _: plans.column_wise(ranks=list(range(ranks))),
    }[kind]
    placed = plans.construct_module_sharding_plan(
        tables,
        per_param_sharding={f"t{at}": how(at) for at in range(len(ROWS))},
        sharder=sharder,
        local_size=ranks,
        world_size=ranks,
        device_type="cpu",
    )
    model = DistributedModelParallel(
        nn.Sequential(tables),
        device=torch.device("cpu"),
        plan=ShardingPlan({"0": placed}),
        sharders=[sharder],
    )
    bags = KeyedJaggedTensor(
        keys=[f"f{at}" for at in range(len(ROWS))],
        values=torch.arange(len(ROWS) * SAMPLES) % min(ROWS),
        lengths=torch.ones(len(ROWS) * SAMPLES, dtype=torch.int64),
    )
    CALLS.clear()
    enter_phase("step 1 forward")
    vectors = model(bags).values()
    enter_phase("step 1 backward")
    vectors.sum().backward()


CASES: dict[str, Callable[[], None]] = {kind: partial(case, kind) for kind in SETTINGS}
