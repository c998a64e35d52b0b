"""Scenario to result: the parts add up, scaling is defined as stated, physics bounds everything."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType

import pytest

from perfmodel.errors import InputError
from perfmodel.files import list_shipped
from perfmodel.library.model import load_library
from perfmodel.scenario import load_scenario, make_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result

TEXT = """# How long is a step?
perfmodel: 1
model: {name: resnet50}
compute: {precision: fp16}
cluster: {node: dgx-a100, nodes: 2, fabric: one-switch}
training: {batch_per_gpu: 64}
scale: {gpus: [1, 8, 16]}
"""


def answered(tmp_path: Path, *overrides: str, text: str = TEXT) -> Result:
    path = tmp_path / "question.yaml"
    path.write_text(text)
    return run_scenario(load_scenario(str(path), overrides))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return answered(tmp_path_factory.mktemp("study"))


def test_the_parts_of_a_step_add_up(result: Result) -> None:
    for point in result.points:
        assert sum(point.breakdown_s.values()) == pytest.approx(point.step_time_s, rel=1e-9)
        assert min(point.breakdown_s.values()) >= 0
        assert point.exposed_comm_s <= point.comm_s
        assert point.compute_s + point.exposed_comm_s <= point.step_time_s * (1 + 1e-9)


def test_throughput_and_efficiency_are_what_they_say(result: Result) -> None:
    base = result.points[0]
    for point in result.points:
        assert point.global_batch == 64 * point.gpus
        assert point.samples_per_s == pytest.approx(point.global_batch / point.step_time_s)
        ratio = point.samples_per_s / (base.samples_per_s * point.gpus / base.gpus)
        assert point.scaling_efficiency == pytest.approx(ratio)
        assert 0 < point.scaling_efficiency <= 1
    assert result.efficiency_base == 1
    assert base.scaling_efficiency == 1.0


def test_one_gpu_neither_copies_nor_communicates(result: Result) -> None:
    alone = result.points[0]
    assert alone.comm_s == alone.exposed_comm_s == alone.breakdown_s["copies"] == 0
    assert alone.buckets == ()


def test_no_step_beats_its_bounds(result: Result, theory: ModuleType) -> None:
    alone = result.points[0].breakdown_s
    compute = alone["forward"] + alone["backward"] + alone["optimizer"]
    egress = {8: 240e9, 16: 240e9}  # NVLink of one GPU: no ring can send faster than that
    for point in result.points[1:]:
        wire = theory.egress_bound_s("all_reduce", point.gpus, 4 * 25557032, egress[point.gpus])
        assert point.step_time_s >= compute
        assert point.comm_s >= wire
        for bucket in point.buckets:
            assert bucket.end_s - bucket.start_s >= theory.egress_bound_s(
                "all_reduce", point.gpus, bucket.nbytes, egress[point.gpus]
            )


def test_buckets_are_launched_in_order_on_one_stream(result: Result) -> None:
    buckets = result.main.buckets
    assert [bucket.nbytes // 4 for bucket in buckets] == [
        2049000,
        7875584,
        6563840,
        6637568,
        2431040,
    ]  # the real trace, see tests/training
    for earlier, later in itertools.pairwise(buckets):
        assert later.start_s >= earlier.end_s - 1e-12
    for bucket in buckets:
        assert bucket.ready_s <= bucket.start_s < bucket.end_s <= result.main.step_time_s


def test_the_first_iteration_does_not_overlap(tmp_path: Path) -> None:
    """All gradients in one bucket: the whole all-reduce comes after the whole backward pass."""
    slow = ("cluster.node=v100-x8-25g", "library.protocol=simple", "compute.overlap_slowdown=1.0")
    point = answered(tmp_path, *slow).main
    passes = point.breakdown_s["forward"] + point.breakdown_s["backward"]
    wire_s = 4 * 25557032 / (0.926 * 25e9 / 8)  # of a tree over two hosts
    assert point.first_step_time_s > passes + wire_s > point.step_time_s


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (("training.batch_per_gpu=1",), "host (launching kernels)"),
        (("training.batch_per_gpu=256",), "compute"),
        (("cluster.node=v100-x8-25g",), "each host's NIC"),
        (
            (
                "cluster.node=rtx4090-x4",
                "cluster.nodes=1",
                "cluster.gpus_per_node=2",
                "model.name=vgg16",
                "training.batch_per_gpu=8",
            ),
            "the GPUs' PCIe and staging in host memory",
        ),
        (
            (
                "cluster.nodes=16",
                "scale=null",
                "training.batch_per_gpu=16",
                "compute.cuda_graphs=true",
                "strategy.bucket_cap=100 KiB",
                "compute.overlap_slowdown=1.0",
                "library.protocol=simple",
            ),
            "latency of the tree's steps",
        ),
    ],
)
def test_what_limits_a_step_is_named(
    tmp_path: Path, overrides: tuple[str, ...], wanted: str
) -> None:
    assert answered(tmp_path, *overrides).main.bottleneck.startswith(wanted)


def test_links_are_never_overfull(result: Result) -> None:
    assert result.main.links
    assert all(0 < link.utilisation <= 1 for link in result.main.links)


def test_strong_scaling_splits_one_batch(tmp_path: Path) -> None:
    text = TEXT.replace("{batch_per_gpu: 64}", "{global_batch: 512}")
    strong = answered(tmp_path, text=text)
    assert strong.scaling == "strong"
    assert [point.global_batch for point in strong.points] == [512] * 3
    assert [point.batch_per_gpu for point in strong.points] == [512, 64, 32]
    assert strong.main.step_time_s < strong.points[0].step_time_s


def test_gradient_accumulation_communicates_once_per_step(tmp_path: Path, result: Result) -> None:
    four = answered(tmp_path, "strategy.accumulate=4")
    assert four.main.global_batch == 4 * result.main.global_batch
    reduced = [span for span in four.timeline.spans if span.bucket is not None and span.nbytes]
    assert sum(span.nbytes for span in reduced) == 4 * 25557032
    assert four.main.scaling_efficiency > result.main.scaling_efficiency


@pytest.mark.usefixtures("steps_alone")
def test_half_the_gradient_bytes_with_a_compression_hook(tmp_path: Path, result: Result) -> None:
    slow = "cluster.node=v100-x8-25g"
    plain, half = (
        answered(tmp_path, slow, hook) for hook in ("strategy.hook=none", "strategy.hook=fp16")
    )
    assert half.main.comm_s < 0.55 * plain.main.comm_s + 0.01
    assert half.main.step_time_s < plain.main.step_time_s


@pytest.mark.usefixtures("steps_alone")
def test_a_faster_network_is_never_slower(tmp_path: Path) -> None:
    steps = [
        answered(tmp_path, f"cluster.node=ethernet-{rate}g", "scale=null").main.step_time_s
        for rate in (10, 25, 100)
    ]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.usefixtures("steps_alone")
def test_data_parallel_is_slower_than_ddp(tmp_path: Path) -> None:
    """One process, no overlap, device 0 as the server: PyTorch itself recommends DDP."""
    one = ("cluster.nodes=1", "scale.gpus=[1, 8]")
    ddp = answered(tmp_path, *one)
    server = answered(tmp_path, *one, "strategy={kind: data_parallel}")
    assert server.main.step_time_s > ddp.main.step_time_s
    assert server.main.exposed_comm_s > ddp.main.exposed_comm_s
    assert server.main.mode == "flow, 2 rank classes"


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_both_fidelities_answer_alike(tmp_path: Path) -> None:
    """Within 1 % of the step on two hosts of eight GPUs."""
    small = ("training.batch_per_gpu=16", "scale.gpus=[16]")
    flow, message = (answered(tmp_path, *small, f"fidelity={f}") for f in ("flow", "message"))
    assert flow.main.step_time_s == pytest.approx(message.main.step_time_s, rel=0.01)


@pytest.mark.usefixtures("steps_alone")
def test_overlap_slowdown_costs_time(tmp_path: Path) -> None:
    times = [
        answered(tmp_path, f"compute.overlap_slowdown={x}", "cluster.node=v100-x8-25g").main
        for x in (1.0, 1.4)
    ]
    none, some = (point.breakdown_s["slowdown"] for point in times)
    assert none == pytest.approx(0, abs=1e-12)
    assert some > 1e-3


def test_the_same_question_gives_the_same_bits(tmp_path: Path, result: Result) -> None:
    again = answered(tmp_path)
    assert again.points == result.points
    assert again.provenance["scenario_sha256"] == result.provenance["scenario_sha256"]


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("cluster.node=dgx-a10", r"cluster\.node.*did you mean 'dgx-a100'"),
        ("model.name=resnet5", r"model.*did you mean 'resnet50'"),
        ("cluster.fabric=rail-optimized", r"fabric.*did you mean 'rail-optimised'"),
        ("scale.gpus=[1, 8, 64]", r"scale\.gpus.*found 64"),
        ("cluster.gpus_per_node=9", r"gpus_per_node.*at most 8"),
        ("compute.precision=fp64", r"compute\.precision"),
        ("fidelity=mesage", r"fidelity.*'message'"),
    ],
)
def test_names_that_do_not_resolve(tmp_path: Path, override: str, wanted: str) -> None:
    with pytest.raises(InputError, match=wanted):
        answered(tmp_path, override)


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("cluster.nodes=300000", "--set cluster.nodes"),
        ("cluster.pool=300000", "--set cluster.pool"),
        ("jobs=[{model: resnet18, batch_per_gpu: 8, nodes: 300000}]", "--set jobs.0.nodes"),
    ],
)
def test_too_many_gpus_are_refused_by_the_field_that_asks_for_them(
    tmp_path: Path, override: str, field: str
) -> None:
    with pytest.raises(InputError) as caught:
        answered(tmp_path, override)
    assert [fault.field for fault in caught.value.faults] == [field]


def test_two_misspelt_names_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        answered(tmp_path, text=TEXT.replace("resnet50", "resnet5").replace("dgx-a100", "dgx-a10"))
    assert [(f.field, f.line) for f in caught.value.faults] == [
        ("cluster.node", 5),
        ("model.name", 3),
    ]


def test_message_fidelity_refuses_what_would_take_minutes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fidelity.*sends.*use 'flow'"):
        answered(tmp_path, "fidelity=message", "cluster.nodes=64", "scale=null")


SEARCHED = ["model.name=llama3-8b", "cluster.nodes=4", "training.global_batch=64"]
LONG_SCENARIOS = {
    "gpt3-175b-1024-a100": ["strategy.accumulate=16"],
    "lost-nic-3d": ["strategy.accumulate=8"],
    "pipeline-straggler": ["strategy.accumulate=8"],
    "llama3-405b-16384-h100": [
        "model.name=llama3.1-8b",
        "cluster.nodes=4",
        "strategy.accumulate=4",
        "parallel.pipeline={stages: 4, schedule: interleaved, chunks: 2}",
    ],
    "deepseek-v3-2048-h800": [
        "model.name=deepseek-v2-lite",
        "cluster.nodes=4",
        "parallel.expert=8",
        "strategy.accumulate=8",
        "parallel.pipeline={stages: 4, schedule: dualpipe, blocks_per_part: [7, 7, 7, 6]}",
    ],
    "mixtral-8x7b-fabrics": ["strategy.accumulate=4"],
    "jitter": ["cluster.nodes=4", "scale.gpus=[1, 8, 32]"],
    "plan-llama3-70b": SEARCHED,
    "auto-llama3-70b-512": SEARCHED,
}
"""Scenarios that take long as they ship, with what shortens them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", list_shipped("scenarios"))
@pytest.mark.usefixtures("steps_alone")
def test_every_shipped_scenario_answers(name: str) -> None:
    answer = run_scenario(load_scenario(name, LONG_SCENARIOS.get(name, [])))
    assert answer.question.partition(" Changed: ")[0].endswith("?")
    assert all(point.step_time_s > 0 for point in answer.points)
    assert all(0 < point.scaling_efficiency <= 1.001 for point in answer.points)
    assert answer.main.memory.fits


def test_a_profile_brings_an_interval_and_says_what_was_measured() -> None:
    answer = run_scenario(load_scenario("resnet18-loopback-gloo"))
    assert answer.provenance["profile"] == "epyc-2-cores-gloo-2-ranks"
    (compute,) = answer.points[0].uncertainties or ()  # one rank communicates nothing
    assert compute.origin.startswith("compute of")
    assert answer.main.interval_s is not None
    low, high = answer.main.interval_s
    assert low < answer.main.step_time_s < high
    assert any(each.origin.startswith("network of") for each in answer.main.uncertainties or ())
    assert any("Measured by profile" in line for line in answer.assumptions)
    plain = run_scenario(load_scenario("resnet18-loopback-gloo", ["profile=null"]))
    assert plain.main.interval_s is None
    assert plain.main.comm_s != pytest.approx(answer.main.comm_s, rel=0.01)


def test_a_profile_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"profile.*cpu-loopback"):
        answered(tmp_path, "profile=epyc-2-cores-gloo")


def test_links_carry_the_bytes_of_one_step(tmp_path: Path) -> None:
    """Of two hosts each NIC sends an eighth of the gradients: half of it up a tree, half down.

    InfiniBand is busy for longer than those bytes take, by what NCCL's share of it leaves.
    """
    simple = ("library.protocol=simple", "strategy.broadcast_buffers=false", "scale.gpus=[16]")
    point = answered(tmp_path, *simple).main
    cables = [link for link in point.links if "/nic" in link.src and "fabric" in link.dst]
    assert len(cables) == 16
    plain = load_library("nccl")
    share = next(
        v.network_efficiency
        for v in plain.variants
        if "infiniband" in v.networks and v.network_efficiency
    )
    assert share is not None
    for link in cables:
        assert link.nbytes == pytest.approx(4 * 25557032 / 8, rel=1e-3)
        busy_s = link.nbytes / share / 25e9
        assert link.utilisation == pytest.approx(busy_s / point.step_time_s, rel=0.05)


def test_an_approximation_is_said_with_its_size(tmp_path: Path) -> None:
    """Edges that share NVLink ports with unlike ones are a fluid; rings of alike ones are exact."""
    shared = answered(tmp_path, "cluster.node=dgx-h100", "scale.gpus=[16]", "cluster.nodes=2")
    alone = answered(tmp_path, "cluster.node=dgx-a100", "scale.gpus=[8]", "cluster.nodes=1")
    told = [line for line in shared.assumptions if "are an approximation where" in line]
    assert told
    assert all("% at worst." in line for line in told)
    assert not [line for line in alone.assumptions if "are an approximation where" in line]


def test_an_approximation_is_said_of_vectors_of_ranks_too(tmp_path: Path) -> None:
    events = "events:\n  - jitter: {cv: 0.02}\n"
    path = tmp_path / "jitter.yaml"
    path.write_text(QUESTION_16 + events)
    answer = run_scenario(load_scenario(str(path)))
    assert "as vectors" in answer.main.mode
    assert any("are an approximation where" in line for line in answer.assumptions)
    assert not any("GPUs of a class are alike" in line for line in answer.assumptions)


@pytest.mark.parametrize("routing", ["ecmp", "adaptive"])
def test_routing_is_that_of_the_scenario(tmp_path: Path, routing: str) -> None:
    """Adaptive routing makes one switch of all those above the leaves."""
    path = tmp_path / "routed.yaml"
    fabric = f"{{kind: leaf-spine, routing: {routing}, hosts_per_leaf: 1, radix: 8}}"
    path.write_text(QUESTION_16.replace("rail-optimised", fabric))
    topology = run_scenario(load_scenario(str(path))).topology
    assert any("adaptive" in line for line in topology.assumptions) == (routing == "adaptive")


def test_shared_host_memory_is_not_called_unlimited(tmp_path: Path) -> None:
    staged = answered(tmp_path, "cluster.node=rtx4090-x4", "cluster.nodes=1", "scale.gpus=[4]")
    assert "memory" in staged.topology.arcs.kinds
    assert not any("taken as no limit" in line for line in staged.assumptions)


QUESTION_16 = """\
# Two hosts whose rings share NVLink ports.
perfmodel: 1
model: {name: resnet18}
compute: {precision: bf16}
cluster: {node: dgx-h100, nodes: 2, fabric: rail-optimised}
training: {batch_per_gpu: 32}
"""


@pytest.mark.parametrize(
    ("overrides", "is_said"),
    [
        ((), True),
        (("compute.precision=fp16",), True),
        (("compute.channels_last=true",), False),
        (("compute.precision=fp32",), False),
        (("model.name=vit-b-16",), False),  # its one convolution cuts images into patches
        (("model.name=gpt2",), False),
    ],
)
def test_images_that_are_transposed_for_tensor_cores_are_said(
    tmp_path: Path, overrides: tuple[str, ...], is_said: bool
) -> None:
    """Where it is said, the other layout is quicker."""
    alone = ("cluster.nodes=1", "cluster.gpus_per_node=1", "training.batch_per_gpu=32", *overrides)
    found = answered(tmp_path, *alone)
    assert any("compute.channels_last is false" in line for line in found.assumptions) == is_said
    if is_said:
        spared = answered(tmp_path, *alone, "compute.channels_last=true")
        assert spared.main.step_time_s < 0.95 * found.main.step_time_s


@pytest.mark.parametrize(
    ("overrides", "said", "unsaid"),
    [
        ((), "as its own rules choose.", "NCCL_ALGO"),
        (("library.algorithm=ring",), "as its own rules choose within NCCL_ALGO=ring.", "tree"),
        (("library.name=plain",), "Hockney's alpha-beta model.", "its own rules"),
    ],
)
def test_who_chooses_the_algorithm_is_said(
    tmp_path: Path, overrides: tuple[str, ...], said: str, unsaid: str
) -> None:
    found = answered(tmp_path, "scale={gpus: [16]}", *overrides).assumptions
    (line,) = [line for line in found if line.startswith("Communication is ")]
    assert line.endswith(said)
    assert unsaid not in line


def test_stages_that_would_wait_for_each_others_norms_are_refused() -> None:
    """Each sub-group has a norm of all stages: ten on one, nine on the other never end."""
    scenario = make_scenario(
        {
            "perfmodel": 1,
            "model": {
                "transformer": {"hidden": 128, "layers": 2, "heads": 4, "vocab": 1000},
                "tokens": 128,
            },
            "compute": {"precision": "bf16"},
            "strategy": {"kind": "zero", "stage": 3, "sub_group_size": 1},
            "parallel": {"pipeline": {"stages": 2}},
            "cluster": {"node": "dgx-a100", "nodes": 1},
            "training": {"batch_per_gpu": 4},
        }
    )
    with pytest.raises(InputError, match=r"strategy\.sub_group_size: found stages that agree on"):
        run_scenario(scenario)
