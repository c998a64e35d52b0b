"""The step that is planned issues what a real Horovod reduced (`record_horovod_steps`).

Both processes hand gradients over while cycles go on, so that a recorded step is cut where a cycle
began: order and sizes are compared for all, groups where one cycle had all.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.scenario.strategies.strategy import HorovodStrategy
from perfmodel.training.horovod import horovod_plan
from perfmodel.training.horovod_cycles import buffer_bytes
from perfmodel.training.plan.step_plan import Collective

pytest.importorskip("torch")
from tests.training.recorded.toy_workload import request, workload

STEPS: dict[str, list[list[dict[str, Any]]]] = json.loads(
    Path(__file__).with_name("horovod_steps.json").read_text()
)["steps"]
UNFUSED = HorovodStrategy.model_validate({"kind": "horovod", "fusion_threshold": "0 B"})
OPTIONS = {
    "default": HorovodStrategy(kind="horovod"),
    "compressed": HorovodStrategy(kind="horovod", compression="fp16"),
    "unfused": UNFUSED,
    "small buffer": UNFUSED.model_copy(update={"fusion_threshold": 8192.0}),
    "accumulating": HorovodStrategy(kind="horovod", accumulate=2),
}


def planned(options: HorovodStrategy, cycle_s: float) -> list[int]:
    """Bytes of each reduction on CPUs, with cycles that are long or short beside a layer's 2 ms."""
    changed = options.model_copy(update={"cycle_time": cycle_s})
    plan = horovod_plan(request(2, blocking_wait=True, ranks_per_host=2), changed)
    return [task.work.nbytes for task in plan.tasks if isinstance(task.work, Collective)]


def layer_of(name: str) -> str:
    """A layer's own tensors get ready together, in an order that no size depends on."""
    return name.rpartition(".")[0]


@pytest.mark.parametrize("mode", STEPS)
def test_each_step_reduces_the_same_gradients_in_the_same_order(mode: str) -> None:
    model = workload()
    order = [index for layer in reversed(model.layers) for index in layer.tensors]
    names = [model.tensors[index].name for index in order]
    alone = UNFUSED.model_copy(update={"compression": OPTIONS[mode].compression})
    sizes = dict(zip(names, planned(alone, 0.0), strict=True))
    limit = buffer_bytes(OPTIONS[mode].fusion_threshold, 2)
    for step in STEPS[mode]:
        reduced = list(itertools.chain(*(group["names"] for group in step)))
        assert sorted(reduced) == sorted(names)
        assert list(map(layer_of, reduced)) == list(map(layer_of, names))
        for group in step:
            assert group["nbytes"] == sum(sizes[name] for name in group["names"])
            assert len(group["names"]) == 1 or group["nbytes"] <= limit
        assert sum(group["nbytes"] for group in step) == sum(planned(OPTIONS[mode], 1.0))


def test_what_one_cycle_has_is_fused_as_planned() -> None:
    """128 MiB hold all gradients, 0 B one."""
    whole = planned(OPTIONS["default"], 1.0)
    assert len(whole) == 1
    assert any([group["nbytes"] for group in step] == whole for step in STEPS["default"])
    assert [[group["nbytes"] for group in step] for step in STEPS["unfused"]] == [
        planned(OPTIONS["unfused"], cycle_s) for cycle_s in (0.0, 1e-3, 1.0)
    ]
