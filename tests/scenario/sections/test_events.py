"""The words of events, other jobs and placement: units, exactly one kind, all faults at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import Scenario, load_scenario

TEXT = """\
# What does it cost?
perfmodel: 1
model: {name: resnet50}
compute: {precision: fp16}
cluster: {node: dgx-a100, nodes: 4, gpus_per_node: 8, fabric: rail-optimised}
training: {batch_per_gpu: 64}
"""


def read(tmp_path: Path, more: str, text: str = TEXT) -> Scenario:
    path = tmp_path / "question.yaml"
    path.write_text(text + more)
    return load_scenario(str(path))


def faults(tmp_path: Path, more: str, text: str = TEXT) -> list[tuple[str, int | None, str]]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, more, text)
    return [(fault.field, fault.line, fault.allowed) for fault in caught.value.faults]


def test_every_word_is_understood(tmp_path: Path) -> None:
    scenario = read(
        tmp_path,
        """\
events:
  - slow: {nodes: [3], by: 1.3}
  - slow: {ranks: [5, 12], by: 2, steps: [1]}
  - jitter: {kind: gamma, cv: 0.05, per: layer, seed: 3}
  - degrade: {link: "n0/nic0 -- fabric/leaf0", to: "25 Gbit/s", at: "0.1 s", until: "0.2 s"}
  - degrade: {link: n0/nic1, by: 4, latency: "5 us"}
  - down: {link: n0/nic2, at: "100 ms", reroute_after: "50 ms"}
  - lose: {nic: n1/nic3, at: "1 s"}
  - traffic: {from: n0/cpu0, to: n0/gpu0, rate: "2 GB/s"}
  - traffic: {from: "n*/gpu0", to: n1/cpu0, nbytes: "3 GB", every: "1 s", at: "10 ms"}
jobs:
  - {model: bert-large, nodes: 2, batch_per_gpu: 8, placement: random, start: "5 ms"}
""",
    )
    kinds = [event.kind for event in scenario.events]
    assert kinds == ["slow"] * 2 + ["jitter"] + ["degrade"] * 2 + ["down", "lose"] + ["traffic"] * 2
    degrade, traffic = scenario.events[3].degrade, scenario.events[8].traffic
    assert degrade is not None
    assert traffic is not None
    assert (degrade.to, degrade.at, degrade.until) == (25e9 / 8, 0.1, 0.2)
    assert (traffic.from_, traffic.nbytes, traffic.every) == ("n*/gpu0", 3e9, 1.0)
    (job,) = scenario.jobs
    assert (job.model.name, job.placement, job.start) == ("bert-large", "random", 5e-3)
    assert scenario.cluster.placement == "packed"


@pytest.mark.parametrize(
    ("event", "field", "allowed"),
    [
        ("slow: {by: 2}", "slow", "either 'ranks' or 'nodes'"),
        ("slow: {ranks: [1], nodes: [1], by: 2}", "slow", "either 'ranks' or 'nodes'"),
        ("slow: {ranks: [1], by: 0.9}", "slow.by", "greater than or equal to 1"),
        ("slow: {ranks: [-1], by: 2}", "slow.ranks.0", "greater than or equal to 0"),
        ("jitter: {kind: norml, cv: 0.1}", "jitter.kind", "did you mean 'normal'"),
        ("jitter: {kind: normal, cv: 0.5}", "jitter", "1/3 at most"),
        ("jitter: {cv: 1.5}", "jitter.cv", "less than or equal to 1"),
        ("jitter: {cv: 5 %}", "jitter.cv", "a number"),
        ("degrade: {link: n0/nic0, to: 25}", "degrade.to", "a bandwidth such as"),
        ("degrade: {link: n0/nic0}", "degrade", "at least one"),
        ("degrade: {link: n0/nic0, by: 2, to: 1 GB/s}", "degrade", "not both"),
        ("degrade: {link: n0/nic0, by: 2, at: 2 s, until: 1 s}", "degrade", "later than"),
        ("down: {link: n0/nic0, reroute_after: 3}", "down.reroute_after", "a time such as"),
        ("lose: {nik: n0/nic0}", "lose.nic", "required"),
        ("traffic: {from: a, to: b}", "traffic", "at least one"),
        ("traffic: {from: a, to: b, rate: 1 GB/s, every: 1 s}", "traffic", "together with"),
        ("traffic: {from: a, to: b, nbytes: 1 GB, every: 0 s}", "traffic", "above zero"),
        ("trafic: {from: a}", "trafic", "did you mean 'traffic'"),
        ("{}", "", "exactly one of"),
        ("{lose: {nic: a}, slow: {ranks: [1], by: 2}}", "", "exactly one of"),
    ],
)
def test_a_wrong_word_is_named_with_its_line(
    tmp_path: Path, event: str, field: str, allowed: str
) -> None:
    found = faults(tmp_path, f"events:\n  - {event}\n")
    named = f"events.0.{field}".rstrip(".")
    assert [line for _, line, _ in found] == [8] * len(found)
    assert any(where == named and allowed in text for where, _, text in found), found


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    found = faults(
        tmp_path,
        """\
events:
  - slow: {nodes: [4], by: 1.3}
  - slow: {ranks: [32], by: 1.3}
jobs:
  - {model: vgg16, nodes: 2}
""",
    )
    assert [(where, line) for where, line, _ in found] == [
        ("events.0.slow.nodes.0", 8),
        ("events.1.slow.ranks.0", 9),
        ("jobs.0.batch_per_gpu", 11),
    ]
    assert found[0][2] == "0 to 3, the nodes of this job"


def test_jobs_need_room_and_a_network(tmp_path: Path) -> None:
    job = "jobs:\n  - {model: vgg16, nodes: 2, batch_per_gpu: 8}\n"
    small = TEXT.replace("fabric: rail-optimised", "fabric: rail-optimised, pool: 5")
    assert faults(tmp_path, job, small) == [
        ("cluster.pool", 5, "at least 6, for this job and its jobs")
    ]
    single = TEXT.replace("nodes: 4, ", "").replace(", fabric: rail-optimised", "")
    ((field, _, allowed),) = faults(tmp_path, job, single)
    assert field == "cluster.fabric"
    assert "between the 3 nodes" in allowed


def test_a_node_has_one_kind_of_gpu(tmp_path: Path) -> None:
    mixed = TEXT.replace(
        "fabric: rail-optimised",
        "fabric: rail-optimised, mixed: [{nodes: [1, 4], gpu: a}, {nodes: [1], gpu: b}]",
    )
    found = faults(tmp_path, "", mixed)
    assert [where for where, _, _ in found] == [
        "cluster.mixed.0.nodes.1",
        "cluster.mixed.1.nodes.0",
    ]


def test_events_are_part_of_the_digest(tmp_path: Path) -> None:
    from perfmodel.scenario import scenario_digest

    slow = "events:\n  - slow: {nodes: [3], by: 1.3}\n"
    digests = {scenario_digest(read(tmp_path, more)) for more in ("", slow)}
    assert len(digests) == 2


def test_the_schema_shows_the_words() -> None:
    schema = Scenario.model_json_schema()
    assert set(schema["$defs"]["EventSection"]["properties"]) == {
        "slow",
        "jitter",
        "degrade",
        "down",
        "lose",
        "traffic",
    }
    assert "from" in schema["$defs"]["TrafficEvent"]["properties"]
    assert {"events", "jobs"} <= set(schema["properties"])
