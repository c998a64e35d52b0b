"""What is offloaded has to fit the memory and the drives of its host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.files.read import parse_yaml
from perfmodel.report.common import quantities
from perfmodel.report.run.text import to_json
from perfmodel.scenario import change_scenario, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result

TO_CPU = {"kind": "zero", "stage": 3, "offload_optimizer": {}, "offload_param": {}}
MODEL = """# How long is a step?
perfmodel: 1
model: {transformer: {hidden: 1024, layers: 8, heads: 16, vocab: 1000}, tokens: 512, dtype: bf16}
compute: {precision: bf16, optimizer: adamw}
strategy: {kind: ddp}
cluster: {node: {extends: dgx-a100}, nodes: 1, gpus_per_node: 4}
training: {batch_per_gpu: 2}
"""


@pytest.fixture
def run_with(tmp_path: Path) -> Any:
    path = tmp_path / "scenario.yaml"
    path.write_text(MODEL)
    scenario = load_scenario(str(path))

    def run(**fields: Any) -> Result:
        named = {name.replace("__", "."): value for name, value in fields.items()}
        return run_scenario(change_scenario(scenario, named))

    return run


def parameters_of(run_with: Any) -> float:
    """Of the model, from what one GPU keeps of them in 16 bits."""
    return float(run_with().main.memory.parameters_bytes / 2)


@pytest.mark.slow
def test_all_gpus_of_a_host_share_its_memory(run_with: Any) -> None:
    """20 bytes of each parameter (ZeRO-Infinity, equation 2), whatever the number of GPUs."""
    results = [run_with(strategy=TO_CPU, cluster__gpus_per_node=gpus) for gpus in (1, 4, 8)]
    parameters = parameters_of(run_with)
    for result in results:
        memory = result.main.memory
        assert memory.host_bytes == pytest.approx(20 * parameters, rel=0.001)
        assert memory.host_capacity_bytes == 2e12
        assert memory.fits
    two = run_with(strategy=TO_CPU, cluster__nodes=2, cluster__fabric={"kind": "one-switch"})
    assert two.main.memory.host_bytes == pytest.approx(10 * parameters, rel=0.001)


def test_a_small_host_is_named_with_what_would_fit(run_with: Any) -> None:
    node = {"extends": "dgx-a100", "host_memory": "1 GB"}
    result = run_with(strategy=TO_CPU, cluster__node=node)
    memory = result.main.memory
    assert not memory.fits
    assert not memory.may_fit
    assert memory.fits_gpu
    assert quantities.memory(memory).startswith("Does not fit the host: the host's memory takes")
    assert "Does not fit in the host's memory" in quantities.headline(result)
    assert any("fits" in line for line in memory.advice)
    document = to_json(result)["curve"][-1]
    assert not document["fits"]
    assert document["memory"]["host_capacity_bytes"] == 1e9


@pytest.mark.slow
def test_what_spares_the_host_is_proposed_though_it_takes_more_of_a_gpu(run_with: Any) -> None:
    node = {"extends": "dgx-a100", "host_memory": "1 MB"}
    section = {"kind": "zero", "stage": 1, "reduce_bucket_size": 1_000_000}
    section |= {"offload_optimizer": {"device": "cpu"}}
    memory = run_with(strategy=section, cluster__node=node, model__dtype="fp32").main.memory
    assert memory.overfull == ("memory",)
    replicated = run_with(model__dtype="fp32", strategy={"kind": "ddp"}).main.memory
    assert replicated.total_bytes > memory.total_bytes
    assert any(line.startswith("strategy.kind: ddp") for line in memory.advice)


def test_unknown_memory_is_said_to_be_unchecked(run_with: Any) -> None:
    result = run_with(strategy=TO_CPU, cluster__node="hgx-h200")
    assert result.main.memory.host_capacity_bytes is None
    assert result.main.memory.fits
    assert (
        "\N{NO-BREAK SPACE}GiB, not checked, as the node states no `host_memory`"
        in quantities.memory(result.main.memory)
    )


@pytest.mark.slow
def test_drives_hold_states_or_are_too_small(run_with: Any) -> None:
    drives = {"read": "25 GB/s", "write": "20 GB/s", "capacity": "10 TB"}
    section = TO_CPU | {"offload_optimizer": {"device": "nvme"}}
    node = {"extends": "dgx-a100", "nvme": drives}
    fitting = run_with(strategy=section, cluster__node=node)
    parameters = parameters_of(run_with)
    assert fitting.main.memory.drive_bytes == pytest.approx(16 * parameters, rel=0.001)
    assert fitting.main.memory.fits
    small = run_with(strategy=section, cluster__node=node | {"nvme": drives | {"capacity": "1 GB"}})
    assert small.main.memory.overfull == ("drives",)
    faster = {"read": "250 GB/s", "write": "200 GB/s"}
    quick = run_with(strategy=section, cluster__node=node | {"nvme": faster})
    assert quick.main.step_time_s < fitting.main.step_time_s


def test_activations_that_wait_count(run_with: Any) -> None:
    kept, waiting = (
        run_with(strategy__accumulate=2, compute__offload_activations=each).main.memory
        for each in ("none", "overlapped")
    )
    assert kept.host_bytes == 0
    # all blocks but the last wait; on the GPU stay the one in hand and the one on its way
    blocks = waiting.host_bytes / 4 / 7
    gone = kept.activations_bytes - waiting.activations_bytes
    assert gone == pytest.approx(6 * blocks, rel=0.02)


def test_what_fsdp_offloads_counts(run_with: Any) -> None:
    """Parameters, gradients and two states in fp32."""
    section = {"kind": "fsdp", "offload": True}
    result = run_with(strategy=section, model__dtype="fp32")
    parameters = parameters_of(run_with)
    assert result.main.memory.host_bytes == pytest.approx(16 * parameters, rel=0.001)


def test_files_keep_what_a_node_states(tmp_path: Path) -> None:
    from perfmodel.files import validate_document
    from perfmodel.topology.composed.load import load_node
    from perfmodel.topology.importers.imported import node_text
    from perfmodel.topology.templates.spec import NodeSpec

    node = load_node("dgx2-v100")
    assert node.nvme is not None
    again = validate_document(NodeSpec, parse_yaml(node_text(node)))
    assert again.host_memory == node.host_memory
    assert again.nvme == node.nvme
