"""From the words of events to what they cost and who waits for whom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.report.run.text import to_json
from perfmodel.scenario import load_scenario
from perfmodel.scenario.load import make_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result
from perfmodel.studies.run.steps.sized_job import prepare

TEXT = """\
# What does it cost?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16, overlap_slowdown: 1.0}
cluster: {node: v100-x8-25g, nodes: 2, fabric: one-switch}
training: {batch_per_gpu: 64}
"""


def answered(tmp_path: Path, more: str = "", text: str = TEXT, **kwargs: str) -> Result:
    path = tmp_path / "question.yaml"
    path.write_text(text + more)
    return run_scenario(load_scenario(str(path)), **kwargs)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return answered(tmp_path_factory.mktemp("quiet"))


def test_without_events_nothing_is_said_of_them(quiet: Result) -> None:
    assert quiet.main.disturbance is None
    document = to_json(quiet)
    assert document["events"] == document["waits"] == document["jobs"] == document["steps_s"] == []
    assert document["undisturbed_s"] is None
    (line,) = [line for line in quiet.assumptions if "no stragglers" in line]
    for words in (
        "no stragglers",
        "no jitter",
        "no failing links",
        "no other traffic",
        "no other jobs",
    ):
        assert words in line


def test_a_slow_node_costs_what_its_compute_takes_longer(tmp_path: Path, quiet: Result) -> None:
    result = answered(tmp_path, "events:\n  - slow: {nodes: [1], by: 1.5}\n")
    point, disturbance = result.main, result.main.disturbance
    assert disturbance is not None
    assert disturbance.undisturbed_s == pytest.approx(quiet.main.step_time_s)
    (event,) = disturbance.events
    assert event.what == "n1 1.5 times slower"
    assert event.costs_s == pytest.approx(point.step_time_s - quiet.main.step_time_s)
    parts = quiet.main.breakdown_s
    most_s = 0.5 * (parts["forward"] + parts["backward"] + parts["optimizer"] + parts["copies"])
    assert 0 < event.costs_s <= most_s * (1 + 1e-9)
    assert disturbance.waits[0].last == "n1"
    assert all(wait.share == 1.0 for wait in disturbance.waits if wait.last == "n1")
    assert point.mode == "flow, 2 rank classes"
    assert not any("no stragglers" in line for line in result.assumptions)


def test_the_slow_steps_are_slow_and_no_others(tmp_path: Path, quiet: Result) -> None:
    result = answered(tmp_path, "events:\n  - slow: {ranks: [3], by: 3, steps: [1]}\n")
    disturbance = result.main.disturbance
    assert disturbance is not None
    usual_s = quiet.main.step_time_s
    assert disturbance.steps_s[0] == pytest.approx(usual_s)
    assert disturbance.steps_s[1] > 1.3 * usual_s
    assert disturbance.steps_s[3:] == pytest.approx(
        [usual_s] * len(disturbance.steps_s[3:]), rel=0.01
    )
    assert result.main.step_time_s == pytest.approx(
        sum(disturbance.steps_s) / len(disturbance.steps_s)
    )


@pytest.mark.slow
def test_parts_of_a_step_still_add_up_to_the_mean(tmp_path: Path) -> None:
    result = answered(
        tmp_path,
        "events:\n  - jitter: {kind: normal, cv: 0.01}\n  - slow: {nodes: [0], by: 1.1}\n",
    )
    point, disturbance = result.main, result.main.disturbance
    assert disturbance is not None
    assert sum(point.breakdown_s.values()) == pytest.approx(point.step_time_s, rel=1e-9)
    assert point.mode.startswith("flow, 16 ranks as vectors, mean of ")
    assert disturbance.mean_interval_s is not None
    low, high = disturbance.mean_interval_s
    assert low < point.step_time_s < high
    assert (high - low) / 2 < 0.01 * point.step_time_s
    assert all(event.costs_s > 0 for event in disturbance.events)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path: Path) -> None:
    event = "events:\n  - jitter: {{cv: 0.01, seed: {seed}}}\n"
    first, again, other = (
        answered(tmp_path, event.format(seed=seed)).main.step_time_s for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.slow
def test_jitter_per_layer_costs_less_than_per_step(tmp_path: Path) -> None:
    per = {
        per: answered(tmp_path, f"events:\n  - jitter: {{cv: 0.01, per: {per}}}\n").main
        for per in ("layer", "step")
    }
    undisturbed = per["step"].disturbance
    assert undisturbed is not None
    assert undisturbed.undisturbed_s < per["layer"].step_time_s < per["step"].step_time_s


def test_a_degraded_link_counts_from_the_settled_state(tmp_path: Path, quiet: Result) -> None:
    """While its time lasts, steps take longer; before and after, as long as ever."""
    usual_s = quiet.main.step_time_s
    at, until = 1.5 * usual_s, 9.5 * usual_s
    event = (
        f'  - degrade: {{link: "n0/nic0 -- fabric/switch0", by: 3, at: "{at} s", '
        f'until: "{until} s"}}\n'
    )
    disturbance = answered(tmp_path, f"events:\n{event}").main.disturbance
    assert disturbance is not None
    assert disturbance.steps_s[0] == pytest.approx(usual_s, rel=1e-6)
    assert max(disturbance.steps_s) > 1.2 * usual_s
    assert disturbance.steps_s[-1] == pytest.approx(usual_s, rel=0.02)
    forever = answered(
        tmp_path, 'events:\n  - degrade: {link: "n0/nic0 -- fabric/switch0", by: 3}\n'
    ).main
    assert forever.step_time_s == pytest.approx(max(disturbance.steps_s), rel=0.05)
    assert forever.disturbance is not None
    assert len(forever.disturbance.steps_s) == 1


@pytest.mark.usefixtures("steps_alone")
def test_a_link_that_goes_down_stalls_the_step_until_it_is_routed_around(tmp_path: Path) -> None:
    text = TEXT.replace("v100-x8-25g", "dgx-a100").replace("one-switch", "rail-optimised")
    quiet = answered(tmp_path, text=text).main.step_time_s
    event = 'events:\n  - lose: {nic: n1/nic3, at: "1 ms", reroute_after: "300 ms"}\n'
    disturbance = answered(tmp_path, event, text).main.disturbance
    assert disturbance is not None
    assert max(disturbance.steps_s) == pytest.approx(300e-3 + quiet, rel=0.35)
    assert disturbance.steps_s[-1] < 2 * quiet
    assert disturbance.events[0].what == "n1/nic3 lost from 1 ms on, routed around after 300 ms"


def test_background_traffic_on_the_bottleneck(tmp_path: Path, quiet: Result) -> None:
    event = "events:\n  - traffic: {from: n0/cpu0, to: n1/cpu0, rate: 10 Gbit/s}\n"
    disturbance = answered(tmp_path, event).main.disturbance
    assert disturbance is not None
    assert disturbance.events[0].costs_s > 0.02 * quiet.main.step_time_s


def test_other_gpus_are_slower_by_their_own_roofline(tmp_path: Path) -> None:
    text = TEXT.replace("one-switch", "one-switch, mixed: [{nodes: [1], gpu: GPU}]")
    from perfmodel.topology.templates.gpus import gpu_names

    a100 = next(name for name in gpu_names() if "A100" in name.upper())
    mixed = answered(tmp_path, text=text.replace("GPU}", f"{a100}}}"))
    disturbance = mixed.main.disturbance
    assert disturbance is not None
    assert disturbance.events[0].what == f"n1 has {a100}"
    assert disturbance.events[0].costs_s <= 1e-9  # the faster GPUs wait for the slower ones
    assert {wait.last for wait in disturbance.waits if wait.waited_s > 0} == {"the other 8 GPUs"}


def test_nodes_of_another_gpu_may_hold_ranks_of_several_stages() -> None:
    """Nodes that have the job's own GPU "instead" take as long as without that."""
    job = {
        "model": {"name": "bert-base", "sequence_length": 64},
        "compute": {"precision": "fp16"},
        "strategy": {"kind": "ddp", "accumulate": 2},
        "training": {"batch_per_gpu": 1},
        "parallel": {"pipeline": 2, "order": "pp-tp-cp-ep-dp"},
    }
    cluster = {"node": "v100-x8-25g", "nodes": 2, "gpus_per_node": 2, "fabric": "one-switch"}
    mixed = cluster | {"mixed": [{"nodes": [1], "gpu": "v100-sxm2-16gb"}]}
    alike_s, mixed_s = (
        prepare(make_scenario(job | {"cluster": each})).step().step_time_s
        for each in (cluster, mixed)
    )
    assert mixed_s == pytest.approx(alike_s, rel=1e-12)


@pytest.mark.usefixtures("steps_alone")
def test_two_jobs_share_the_network(tmp_path: Path) -> None:
    text = TEXT.replace("nodes: 2, fabric: one-switch", PLACED)
    job = "jobs:\n  - {name: twin, model: resnet50, nodes: 2, batch_per_gpu: 64}\n"
    spread = answered(tmp_path, job, text).main
    disturbance = spread.disturbance
    assert disturbance is not None
    (neighbour,) = disturbance.jobs
    assert (neighbour.name, neighbour.gpus) == ("twin", 16)
    assert disturbance.events[0].what == "job 'twin' on 2 nodes, packed"
    assert disturbance.events[0].costs_s > 0.05 * disturbance.undisturbed_s
    assert neighbour.step_time_s > 1.05 * neighbour.alone_s
    packed = answered(tmp_path, job, text.replace("placement: spread", "placement: packed")).main
    assert packed.disturbance is not None
    assert packed.disturbance.events[0].costs_s == pytest.approx(0, abs=1e-9)


PLACED = (
    "nodes: 2, fabric: {kind: leaf-spine, hosts_per_leaf: 2, oversubscription: 2}, "
    "placement: spread"
)


@pytest.mark.slow
def test_sharding_beside_another_job_takes_as_long_message_by_message(tmp_path: Path) -> None:
    """Groups in nodes and across them, on a spine that another job shares: within 2 %."""
    text = TEXT.replace("resnet50", "resnet18").replace("nodes: 2", "nodes: 2, gpus_per_node: 2")
    text = text.replace("batch_per_gpu: 64", "batch_per_gpu: 2").replace(
        "fabric: one-switch",
        "fabric: {kind: leaf-spine, hosts_per_leaf: 2, oversubscription: 4}, placement: spread",
    )
    job = "strategy: {kind: fsdp, shard_gpus: 2}\njobs:\n  - {name: other, model: resnet18, "
    job += "nodes: 2, batch_per_gpu: 4, placement: packed}\n"
    flow, message = (
        answered(tmp_path, job, text, fidelity=fidelity).main for fidelity in ("flow", "message")
    )
    for point in (flow, message):
        assert point.disturbance is not None
        assert point.step_time_s > 1.15 * point.disturbance.undisturbed_s
    assert flow.step_time_s == pytest.approx(message.step_time_s, rel=0.02)


def test_the_machine_says_how_much_of_it_is_the_jobs(tmp_path: Path) -> None:
    text = TEXT.replace("nodes: 2, fabric: one-switch", "nodes: 2, pool: 6, fabric: one-switch")
    result = answered(tmp_path, text=text)
    assert result.machine == "2 nodes of v100-x8-25g x 6"
    assert result.main.gpus == 16


@pytest.mark.parametrize(
    ("event", "field", "allowed"),
    [
        ("slow: {nodes: [2], by: 2}", "events.0.slow.nodes.0", "0 to 1"),
        ("slow: {ranks: [16], by: 2}", "events.0.slow.ranks.0", "0 to 15"),
        ("degrade: {link: n0/nik0, by: 2}", "events.0.degrade.link", "n0/nic0"),
        ('down: {link: "n0/nic0 -> n0/gpu0"}', "events.0.down.link", "fabric/switch0"),
        ("lose: {nic: n0/gpu0}", "events.0.lose.nic", "a NIC"),
        ("lose: {nic: n0/nic7}", "events.0.lose.nic", "n0/nic0"),
        ("traffic: {from: n0/cpu9, to: n0/gpu0, rate: 1 GB/s}", "events.0.traffic.from", "n0/cpu0"),
        ('traffic: {from: "n0/gpu*", to: "n*/cpu0", rate: 1 GB/s}', "events.0.traffic.to", "the 8"),
        (
            'traffic: {from: "n[0-11]/cpu0", to: n0/gpu0, rate: 1 GB/s}',
            "events.0.traffic.from",
            "n0/cpu0",
        ),
        (
            'traffic: {from: "n[1-0]/cpu0", to: n0/gpu0, rate: 1 GB/s}',
            "events.0.traffic.from",
            "a range such as",
        ),
        ("traffic: {from: n0/gpu0, to: n0/gpu0, rate: 1 GB/s}", "events.0.traffic.to", "another"),
        ('degrade: {link: n0/nic0, by: 2, at: "1 h"}', "events.0", "within 300 steps"),
        ("degrade: {link: n0/nic0, to: 25 Gbit/s}", "events.0.degrade.to", "undisturbed"),
        ("degrade: {link: n0/nic0, by: 0.5}", "events.0.degrade.by", "equal to 1"),
        ("slow: {ranks: [1], by: 0.5}", "events.0.slow.by", "equal to 1"),
        ("slow: {ranks: [1, 1], by: 2}", "events.0.slow.ranks", "each once, but 1"),
        ('down: {link: "n0/nic0 -- fabric/switch0"}', "events.0", "n0/gpu0 reaches no NIC"),
        ('lose: {nic: n0/nic0, at: "1 ms"}', "events.0", "unreachable from n"),
        (
            "traffic: {from: n0/cpu0, to: n1/cpu0, nbytes: 1 kB, every: 1 us}",
            "events.0.traffic.every",
            "a steady 'rate'",
        ),
        (
            "traffic: {from: n0/cpu0, to: n0/gpu0, nbytes: 1 GB, every: 30 min}",
            "events.0",
            "without 'every'",
        ),
    ],
)
def test_names_that_do_not_resolve_are_told_with_their_line(
    tmp_path: Path, event: str, field: str, allowed: str
) -> None:
    with pytest.raises(InputError) as caught:
        answered(tmp_path, f"events:\n  - {event}\n")
    (fault,) = caught.value.faults
    assert fault.field == field
    assert fault.line == 8
    assert allowed in fault.allowed


@pytest.mark.usefixtures("steps_alone")
def test_other_jobs_are_told_apart_by_name(tmp_path: Path) -> None:
    text = TEXT.replace("nodes: 2", "nodes: 2, gpus_per_node: 2")
    other = "  - {%smodel: resnet18, nodes: 1, batch_per_gpu: %d}\n"
    unnamed = answered(tmp_path, "jobs:\n" + other % ("", 32) + other % ("", 256), text)
    assert unnamed.main.disturbance is not None
    small, large = unnamed.main.disturbance.jobs
    assert (small.name, large.name) == ("resnet18 (job 0)", "resnet18 (job 1)")
    # each on a node of its own, where nothing is shared
    assert small.step_time_s == pytest.approx(small.alone_s, rel=1e-9)
    assert large.step_time_s == pytest.approx(large.alone_s, rel=1e-9)
    assert large.alone_s > 2 * small.alone_s
    with pytest.raises(InputError, match=re.escape("jobs.1.name: found 'a'")):
        answered(tmp_path, "jobs:\n" + other % ("name: a, ", 32) + other % ("name: a, ", 64))


def test_the_bottleneck_is_a_link_of_the_job_itself(tmp_path: Path, quiet: Result) -> None:
    other = "jobs:\n  - {model: vgg16, nodes: 2, batch_per_gpu: 1}\n"  # beside, with more bytes
    assert quiet.main.bottleneck == "each host's NIC"
    assert quiet.main.bottleneck_path == "n0/nic0 -> fabric/switch0 (ethernet)"
    assert answered(tmp_path, other).main.bottleneck == quiet.main.bottleneck


@pytest.mark.slow
def test_what_is_lost_is_no_bottleneck(tmp_path: Path) -> None:
    text = TEXT.replace("v100-x8-25g", "dgx-a100").replace("batch_per_gpu: 64", "batch_per_gpu: 1")
    text = text.replace("{name: resnet50}", "{name: gpt2}").replace("one-switch", "rail-optimised")
    events = "events:\n  - lose: {nic: n1/nic3}\n  - lose: {nic: n1/nic2}\n"
    main = answered(tmp_path, events, text).main
    assert not re.search("n1/nic[23]", main.bottleneck_path)
    assert all(0 <= link.utilisation < 1 for link in main.links)


@pytest.mark.usefixtures("steps_alone")
def test_a_job_that_starts_late_disturbs_from_then_on(tmp_path: Path, quiet: Result) -> None:
    text = TEXT.replace("one-switch", "{kind: leaf-spine, hosts_per_leaf: 2, oversubscription: 2}")
    # one GPU per node: what is shared is the network between nodes
    text = text.replace("nodes: 2", "nodes: 2, gpus_per_node: 1, placement: spread, pool: 4")
    job = "jobs:\n  - {model: vgg16, nodes: 2, batch_per_gpu: 1%s}\n"
    late = answered(tmp_path, job % ', start: "200 ms"', text).main.disturbance
    early = answered(tmp_path, job % "", text).main.disturbance
    assert late is not None
    assert early is not None
    before = int(0.2 / late.undisturbed_s)
    assert late.steps_s[:before] == pytest.approx([late.undisturbed_s] * before, rel=1e-9)
    assert late.steps_s[-1] > 1.1 * late.undisturbed_s
    assert early.steps_s[0] > 1.1 * early.undisturbed_s


def test_unknown_models_and_gpus_are_named_at_once(tmp_path: Path) -> None:
    text = TEXT.replace("one-switch", "one-switch, mixed: [{nodes: [1], gpu: V1000}]")
    with pytest.raises(InputError) as caught:
        answered(tmp_path, "jobs:\n  - {model: resnet5, nodes: 1, batch_per_gpu: 8}\n", text)
    assert {(fault.field, fault.line) for fault in caught.value.faults} == {
        ("cluster.mixed.0.gpu", 5),
        ("jobs.0.model.name", 8),
    }


def test_no_job_mixes_gpus_of_two_makers(tmp_path: Path) -> None:
    text = TEXT.replace("one-switch", "one-switch, mixed: [{nodes: [1], gpu: mi300x}]")
    with pytest.raises(InputError, match="the maker of"):
        answered(tmp_path, "", text)


@pytest.mark.slow
def test_jitter_beside_gloo_jobs_is_refused_for_many_ranks(tmp_path: Path) -> None:
    text = TEXT.replace("nodes: 2", "nodes: 17, pool: 34")
    more = (
        "library: {name: gloo}\nevents:\n  - jitter: {cv: 0.02}\n"
        "jobs:\n  - {model: resnet50, nodes: 17, batch_per_gpu: 8}\n"
    )
    with pytest.raises(InputError, match=re.escape("events.0.jitter: found jitter on 136 ranks")):
        answered(tmp_path, more, text)


@pytest.mark.slow
def test_jitter_beside_other_traffic_makes_vectors_of_many_ranks(tmp_path: Path) -> None:
    text = TEXT.replace("nodes: 2", "nodes: 17")
    traffic = "  - traffic: {from: n0/cpu0, to: n1/cpu0, rate: 1 GB/s}\n"
    result = answered(tmp_path, "events:\n  - jitter: {cv: 0.005}\n" + traffic, text)
    assert result.main.mode.startswith("flow, 136 ranks as vectors, mean of ")


def test_smaller_sizes_leave_out_what_they_do_not_have(tmp_path: Path) -> None:
    more = "scale: {nodes: [1, 2]}\nevents:\n  - slow: {nodes: [1], by: 2}\n"
    result = answered(tmp_path, more)
    assert result.points[0].mode == "flow, 1 rank class"
    assert result.points[1].mode == "flow, 2 rank classes"
    assert result.points[0].disturbance is None
