"""Scenarios drafted from execution traces alone, against the modules that were recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.traces.execution_trace import read_execution_trace
from perfmodel.traces.rebuild.executed_model import read_executed_model
from perfmodel.traces.rebuild.executed_scenario import draft_scenario
from perfmodel.workload import load_workload

torch = pytest.importorskip("torch", reason="the traces are made by PyTorch")

VOCABULARY, WIDTH, TOKENS, BATCH = 50, 32, 16, 4


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Attention with a tied head, a norm of its own, and a product that no module has."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.places = torch.nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.gain = torch.nn.Parameter(torch.ones(WIDTH))
        self.out = torch.nn.Parameter(torch.zeros(WIDTH, WIDTH))

    def forward(self, tokens: Any) -> Any:
        stream = self.table(tokens) + self.places
        maps = self.qkv(self.norm(stream)).view(BATCH, TOKENS, 3, 2, WIDTH // 2)
        query, key, value = maps.permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        flat = attended.transpose(1, 2).reshape(BATCH * TOKENS, WIDTH)
        stream = stream.view(-1, WIDTH) + torch.mm(flat, self.out) * self.gain
        return torch.nn.functional.linear(stream, self.table.weight)


def loss_of(module: Any, tokens: Any) -> Any:
    return torch.nn.functional.cross_entropy(module(tokens), tokens.flatten())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of two micro-batches."""
    path = tmp_path_factory.mktemp("draft") / "et.json"
    module = Block()
    optimizer = torch.optim.AdamW(module.parameters())
    tokens = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    for begins in (False, True):
        if begins:
            observer.start()
        for _ in range(2):
            loss_of(module, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    observer.stop()
    observer.unregister_callback()
    return path


@pytest.mark.slow
def test_layers_and_parameters_are_those_of_the_module(recorded: Path, tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module = Block()
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        meta = Block()
        meta(torch.zeros(BATCH, TOKENS, dtype=torch.long))
    model = read_executed_model(recorded)
    assert (model.batch, model.passes, model.optimizer, model.unread) == (BATCH, 2, "AdamW", 0)
    shapes = sorted(tuple(each["shape"]) for each in model.parameters)
    assert shapes == sorted(tuple(each.shape) for each in module.parameters())
    draft = draft_scenario(read_execution_trace(recorded), model, {"node": "dgx-a100"})
    scenario = load_scenario(draft.write(tmp_path))
    assert (scenario.training.batch_per_gpu, scenario.accumulate) == (BATCH, 2)
    assert scenario.compute.optimizer == "adamw"
    workload = load_workload(str(tmp_path / "model.yaml"))
    operations = BATCH * sum(layer.matmul_flops for layer in workload.layers)
    unmasked = [layer for layer in workload.layers if layer.kind == "attention"]
    assert len(unmasked) == 1
    assert operations == pytest.approx(counter.get_total_flops(), rel=1e-6)
    point = run_scenario(scenario).main
    assert sum(bucket.nbytes for bucket in point.buckets) == 4 * workload.parameters


@pytest.mark.slow
def test_the_command_drafts_and_says_that_times_are_estimates(
    recorded: Path, tmp_path: Path
) -> None:
    words = ["trace", str(recorded), "--topology", "dgx-a100", "-o", str(tmp_path / "out")]
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 0, run.output
    assert "a step takes" in run.stdout
    assert "times are estimates by the model, because an execution trace has none" in run.stderr
    assert "record_shapes=True" in run.stderr
    rows = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert rows["gpus"] == 8


def test_what_is_missing_is_named_with_the_way_to_it(recorded: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for words, said in (
        (["-o", out], "--topology: found nothing; allowed: the machine: an execution trace does"),
        (
            ["--topology", "dgx-a100"],
            "-o: found nothing; allowed: the folder of a drafted scenario",
        ),
    ):
        run = CliRunner().invoke(app, ["trace", str(recorded), *words])
        assert run.exit_code == 2
        assert said in run.stderr


def changed(recorded: Path, folder: Path, **names: str) -> Path:
    """The trace with other names of nodes; "" leaves nodes out."""
    content = json.loads(recorded.read_text())
    nodes = []
    for each in content["nodes"]:
        found = next((to for begin, to in names.items() if each["name"].startswith(begin)), None)
        if found != "":
            nodes.append(each if found is None else each | {"name": found})
    path = folder / "changed.json"
    path.write_text(json.dumps(content | {"nodes": nodes}))
    return path


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"autograd": "", "torch": ""}, "no backward pass"),
        ({"aten": "inductor"}, "no operator of forward that is known"),
    ],
)
def test_traces_of_less_than_a_step_say_how_to_record_one(
    names: dict[str, str], said: str, recorded: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"{said}.*starts before forward and stops after optim"):
        read_executed_model(changed(recorded, tmp_path, **names))


def test_of_several_steps_the_first_is_read(recorded: Path, tmp_path: Path) -> None:
    content = json.loads(recorded.read_text())
    last = max(each["id"] for each in content["nodes"])
    shifted = [
        each | {name: last + each[name] for name in ("id", "ctrl_deps")}
        for each in content["nodes"]
    ]
    path = tmp_path / "two.json"
    path.write_text(json.dumps(content | {"nodes": [*content["nodes"], *shifted]}))
    assert read_executed_model(path) == read_executed_model(recorded)


def test_other_training_is_refused_with_the_files_that_say_more(
    recorded: Path, tmp_path: Path
) -> None:
    content = json.loads(recorded.read_text())
    sent = {
        "id": 10**6,
        "name": "c10d::send",
        "ctrl_deps": 1,
        "attrs": [],
        "outputs": {},
        "inputs": {"values": [], "shapes": [[[8]]], "types": []},
    }
    path = tmp_path / "sends.json"
    path.write_text(json.dumps(content | {"nodes": [*content["nodes"], sent]}))
    with pytest.raises(InputError, match="profiler's traces of all ranks, or Chakra's"):
        draft_scenario(read_execution_trace(path), read_executed_model(path), {})
