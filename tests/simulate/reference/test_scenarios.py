"""Shipped scenarios at small sizes: the quicker fidelities against the reference."""

from __future__ import annotations

from typing import Any

import pytest

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.simulate import reference
from perfmodel.studies.run import one_loop_size
from perfmodel.studies.run.result import SizeResult

pytestmark = pytest.mark.usefixtures("steps_alone")


def decoder(layers: int, tokens: int) -> dict[str, Any]:
    sizes = {"hidden": 256, "layers": layers, "heads": 4, "vocab": 1000}
    return {"transformer": sizes, "sequence_length": tokens}


def nodes(count: int, gpus: int) -> dict[str, Any]:
    return {"cluster.nodes": count, "cluster.gpus_per_node": gpus}


def pipeline(tensor: int, stages: int) -> dict[str, Any]:
    return {"parallel.tensor": tensor, "parallel.pipeline.stages": stages, "strategy.accumulate": 4}


EXACT, UNEQUAL, MEETING, SHARED = 1e-9, 1e-5, 1e-3, 0.1
"""How near the time of communication at fidelity "flow" is: at once where no link is shared, or by
alike edges; with chunks of unequal bytes; where stages send to each other at once; where edges
that differ share links."""

SMALL = {"model": {"name": "resnet18"}}
SCENARIOS: dict[str, tuple[str, dict[str, Any], float]] = {
    "ddp": ("resnet50-dgx-a100", nodes(1, 4) | SMALL, EXACT),
    "ddp over Ethernet": ("bucket-size-slow-ethernet", nodes(4, 1) | SMALL, EXACT),
    "ddp of a transformer": (
        "bert-large-v100-25g",
        nodes(2, 2) | {"model": decoder(6, 128)},
        EXACT,
    ),
    "ddp with jitter": ("jitter", nodes(1, 2) | SMALL, EXACT),
    "horovod": ("vgg16-schedulers-25g", nodes(2, 1) | {"strategy": {"kind": "horovod"}}, EXACT),
    "priority": ("vgg16-schedulers-25g", nodes(2, 2) | {"strategy": {"kind": "priority"}}, EXACT),
    "local sgd": ("local-sgd-1g", nodes(4, 1), EXACT),
    "fsdp": ("llama2-7b-fsdp-h100", nodes(2, 2) | {"model": decoder(3, 512)}, EXACT),
    "hybrid sharding": (
        "sharding-llama2-7b",
        nodes(2, 2) | {"model": decoder(2, 512), "strategy": {"kind": "fsdp", "shard_gpus": 2}},
        EXACT,
    ),
    "zero 2": (
        "sharding-llama2-7b",
        nodes(1, 4)
        | {"model": decoder(2, 512)}
        | {"strategy": {"kind": "zero", "stage": 2, "overlap_comm": True}},
        UNEQUAL,
    ),
    "zero 3": (
        "sharding-llama2-7b",
        nodes(1, 4) | {"model": decoder(2, 512), "strategy": {"kind": "zero", "stage": 3}},
        UNEQUAL,
    ),
    "tensor and pipeline": (
        "gpt3-175b-1024-a100",
        nodes(1, 8) | {"model": decoder(4, 512)} | pipeline(2, 2),
        EXACT,
    ),
    "interleaved pipeline": (
        "llama3-405b-16384-h100",
        nodes(1, 8)
        | {"model": decoder(4, 512)}
        | pipeline(2, 2)
        | {"parallel.pipeline.embedding_as_block": False}
        | {"parallel.pipeline.loss_as_block": False, "parallel.pipeline.chunks": 2},
        MEETING,
    ),
    "pipeline with a slow rank": (
        "pipeline-straggler",
        nodes(2, 4)
        | {"model": decoder(4, 512), "events": [{"slow": {"ranks": [7], "by": 1.2}}]}
        | pipeline(2, 4),
        MEETING,
    ),
    "context": (
        "long-context-llama3-8b",
        nodes(1, 4) | {"model": decoder(2, 8192), "parallel.context.degree": 2},
        UNEQUAL,
    ),
    "data parallel": ("dataparallel-dgx1", SMALL, SHARED),
}


def size(name: str, fields: dict[str, Any], fidelity: str) -> SizeResult:
    return pm.run(name, fields, fidelity=fidelity, with_first=False).points[-1]


@pytest.mark.slow
@pytest.mark.parametrize("what", SCENARIOS)
def test_quicker_fidelities_are_the_reference(what: str) -> None:
    name, fields, near = SCENARIOS[what]
    expected = size(name, fields, "reference")
    assert expected.mode.startswith("reference")
    assert expected.comm_s
    message, flow = (size(name, fields, fidelity) for fidelity in ("message", "flow"))
    assert message.step_time_s == pytest.approx(expected.step_time_s, rel=EXACT)
    assert message.comm_s == pytest.approx(expected.comm_s, rel=EXACT)
    assert flow.step_time_s == pytest.approx(expected.step_time_s, rel=near)
    assert flow.comm_s == pytest.approx(expected.comm_s, rel=near)


SERVERS = {"cluster.nodes": 4, "events": [{"slow": {"ranks": [2], "by": 2}}]}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_parameter_server_is_the_reference(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly up to 64 pushes a round; beyond, rates are solved 400 times a round at most."""
    monkeypatch.setattr(one_loop_size, "simulate_loop_reliefs", lambda *_: ())
    monkeypatch.setattr(one_loop_size, "simulate_loop_uncertainties", lambda *_: ())
    strategy = {"kind": "parameter_server", "servers": 2, "mode": mode}
    for model, near in ((decoder(1, 128), EXACT), ({"name": "resnet18"}, 0.01)):
        fields = SERVERS | {"strategy": strategy, "model": model}
        expected, found = (
            size("parameter-server-straggler", fields, fidelity)
            for fidelity in ("reference", "flow")
        )
        assert found.step_time_s == pytest.approx(expected.step_time_s, rel=near)


def test_more_sends_than_it_simulates_are_refused_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "MOST_SENDS", 1_000)
    with pytest.raises(InputError, match=r"1,\d\d\d sends in .*at most 1,000 sends; use 'flow'"):
        size("bucket-size-slow-ethernet", nodes(8, 1), "reference")
