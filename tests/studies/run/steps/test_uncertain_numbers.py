"""Steps over sockets that a small change of the network moves by far more than its share.

Real DDP of two hosts with eight equal buckets at 500 Mbit/s and 5 ms is such a case: under load it
flips between two step times, 15 % apart.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.files.find import find_file
from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.tune.run import tune_scenario

SCENARIO = """# Which of two messages is first?
perfmodel: 1
model: {file: model.csv}
compute: {precision: fp32, source: file, times: model.csv}
library: {name: gloo}
cluster: {node: node.yaml, nodes: 2, fabric: one-switch}
strategy: {bucket_cap: 0.5 MiB}
training: {batch_per_gpu: 32}
"""


@pytest.fixture
def eight_equal_buckets(tmp_path: Path) -> Scenario:
    return _write(tmp_path, "2.5 ms")


def _write(folder: Path, latency: str) -> Scenario:
    rows = ["name,shape,forward,backward"]
    rows += [f"layer{at}.weight,147456,2.5 ms,5 ms" for at in range(8)]
    (folder / "model.csv").write_text("\n".join(rows) + "\n")
    node = find_file("shaped-ethernet", "topologies").read_text()
    assert "latency: 12 us" in node
    (folder / "node.yaml").write_text(node.replace("latency: 12 us", f"latency: {latency}"))
    (folder / "s.yaml").write_text(SCENARIO)
    return load_scenario(folder / "s.yaml")


def test_a_step_that_flips_says_so(eight_equal_buckets: Scenario) -> None:
    notes = [line for line in run_scenario(eight_equal_buckets).assumptions if "Sensitive" in line]
    assert len(notes) == 1
    assert "of delay" in notes[0]


def test_a_step_that_does_not_says_nothing(tmp_path: Path) -> None:
    quiet = _write(tmp_path, "12 us")
    assert not [line for line in run_scenario(quiet).assumptions if "Sensitive" in line]
    network = load_scenario("resnet50-dgx-a100", ["cluster.nodes=2", "scale=null"])
    assert not [line for line in run_scenario(network).assumptions if "Sensitive" in line]


@pytest.mark.slow
def test_tune_recommends_nothing_that_loses_when_messages_flip(
    eight_equal_buckets: Scenario,
) -> None:
    tuned = tune_scenario(eight_equal_buckets)
    unsure = tuned.recommended.unsure
    assert unsure is not None
    assert unsure.gains[0] > 0 > min(unsure.gains_nearby)
    assert all(min(choice.gains_nearby) > 0 for choice in tuned.recommended.choices)
