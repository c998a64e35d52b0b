"""Vocabulary over all stages: its authors' schedule, bytes and results (Yeung et al. 2024)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perfmodel import run
from perfmodel.errors import InputError
from perfmodel.studies.run.result import SizeResult
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.parallel_layout import ParallelLayout, mix_step
from perfmodel.training.pipeline.pass_actions import PassAction, PipelineSchedule
from perfmodel.training.pipeline.schedules import make_schedule
from perfmodel.training.pipeline.stage_passes import PIPELINE
from perfmodel.training.pipeline.stage_workload import PartitionOptions, cut_model
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload import load_workload
from perfmodel.workload.memory.recompute import NO_RECOMPUTE
from perfmodel.workload.model import Workload
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.shard import Shard
from tests.conftest import PLAIN_GPU

BARRIERS = {"1f1b_vocab_1": 2, "1f1b_vocab_2": 1}
KINDS = sorted(BARRIERS)
STEP_ENDS = {"1f1b_vocab_1": "forward", "1f1b_vocab_2": "input_gradient"}
"""Passes with which an output layer ends what it runs of a micro-batch before others have, too."""

SCENARIO = """# How long is a step whose vocabulary is over all stages?
perfmodel: 1
model:
  transformer: {{hidden: 3072, layers: 32, heads: 24, mlp: gelu, norm: layer, bias: true,
    positions: learned, vocab: {words}}}
  dtype: bf16
  sequence_length: {tokens}
compute: {{precision: bf16, optimizer: adam{compute}}}
strategy: {{kind: megatron, accumulate: {micro_batches}}}
parallel: {parallel}
cluster: {{node: dgx-a100, nodes: 1}}
training: {{batch_per_gpu: 1}}
"""


def scenario_file(
    folder: Path,
    parallel: str,
    *,
    words: int = 32000,
    tokens: int = 2048,
    micro_batches: int = 128,
    compute: str = "",
) -> str:
    path = folder / "scenario.yaml"
    text = SCENARIO.format(
        words=words, tokens=tokens, micro_batches=micro_batches, compute=compute, parallel=parallel
    )
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------- schedule


def authors_order(stages: int, micro_batches: int, barriers: int) -> list[list[str]]:
    """Forwards F, steps of the output layer S and backwards B, as the authors' code runs them.

    From ``forward_backward_pipelining_with_split_vocab_parallel``, with a forward of 1, a backward
    of 2, and steps of no time: a machine of two states that goes from the last stage to the first.
    """
    forward, backward, offset = 1, 2, 0
    step_first, warm_up = [], []
    while len(step_first) < stages:
        if not step_first:
            step_first, warm_up = [True], [0]
            continue
        if offset - forward >= -backward:
            offset -= forward
            step_first.append(True)
        else:
            step_first.append(False)
            if len(step_first) < stages:
                offset += backward - forward
                step_first.append(True)
    for behind in range(1, stages):
        swaps = not step_first[behind - 1] and step_first[behind]
        warm_up.append(warm_up[-1] + (not swaps))
    orders = []
    for stage in range(stages):
        behind = stages - 1 - stage
        order = ["F"] * (behind + 1) + ["S", "F"] * barriers + ["S"] * warm_up[behind]
        order += (["B", "S", "F"] if step_first[behind] else ["B", "F", "S"]) * micro_batches
        counts, ran = Counter[str](), list[str]()
        most = {"F": micro_batches, "B": micro_batches, "S": micro_batches + 1}
        for kind in order:
            counts[kind] += 1
            ran += [kind] * (counts[kind] <= most[kind])
        orders.append(ran)
    return orders


def letters(actions: tuple[PassAction, ...]) -> list[str]:
    """The same of a stage's passes; a step ends where the next one's micro-batch begins."""
    order: list[str] = []
    last = 0
    for action in actions:
        if action.chunk == 0:
            order.append("F" if action.kind == "forward" else "B")
            continue
        step = action.micro_batch + (action.kind in ("backward", "weight_gradient"))
        if not order or order[-1] != "S" or step != last:
            order.append("S")
        last = step
    return order


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", range(2, 13))
def test_steps_stand_where_the_authors_have_them(kind: str, stages: int) -> None:
    schedule = make_schedule(kind, stages, 4 * stages)
    wanted = authors_order(stages, 4 * stages, BARRIERS[kind])
    assert [letters(actions) for actions in schedule.actions] == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", [2, 4, 7])
def test_a_micro_batch_more_is_in_flight_for_each_barrier(kind: str, stages: int) -> None:
    """P + 2 of Algorithm 1 and P + 1 of Algorithm 2 on the first stage (figure 10); 1F1B P."""
    schedule = make_schedule(kind, stages, 4 * stages)
    for stage, actions in enumerate(schedule.actions):
        held, most = 0, 0
        for action in (each for each in actions if each.chunk == 0):
            held += 1 if action.kind == "forward" else -1
            most = max(most, held)
        assert most == stages - stage + BARRIERS[kind]


def is_ready(
    schedule: PipelineSchedule,
    stage: int,
    action: PassAction,
    done: set[tuple[str, int, int, int]],
) -> bool:
    """Whether what a pass needs of all stages is there."""
    last, number, everywhere = schedule.stages - 1, action.micro_batch, range(schedule.stages)

    def ran(kind: str, chunk: int, *stages: int) -> bool:
        return all((kind, chunk, each, number) in done for each in stages)

    if action.chunk == 0 and action.kind == "forward":
        return stage == 0 or ran("forward", 0, stage - 1)
    if action.chunk == 0:
        made = "backward" if BARRIERS[schedule.name] == 2 else "input_gradient"
        return ran(made, 1, *everywhere) if stage == last else ran("backward", 0, stage + 1)
    if action.kind == "forward":
        return ran("forward", 0, last)
    if action.kind == "input_gradient":
        return ran("forward", 1, stage)
    return ran(STEP_ENDS[schedule.name], 1, *everywhere)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", [2, 3, 4, 8, 11])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 9, 24])
def test_passes_never_wait_for_each_other(kind: str, stages: int, micro_batches: int) -> None:
    """Each runs once, whatever the counts are; few micro-batches as well."""
    schedule = make_schedule(kind, stages, micro_batches)
    pending = [list(actions) for actions in schedule.actions]
    done: set[tuple[str, int, int, int]] = set()
    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(pending):
            while actions and is_ready(schedule, stage, actions[0], done):
                action = actions.pop(0)
                done.add((action.kind, action.chunk, stage, action.micro_batch))
                moved = True
    assert pending == [[]] * stages
    of_step = 3 if BARRIERS[kind] == 1 else 2
    assert len(done) == stages * micro_batches * (2 + of_step)


# ---------------------------------------------------------------- shares, bytes


def gpt(stages: int = 1) -> Workload:
    shard = Shard(vocabulary=stages, vocabulary_multiple=128)
    return load_workload("gpt2", dtype="bf16", sequence_length=64, shard=shard)


def plan_of(kind: str, stages: int, micro_batches: int, replicas: int = 1) -> StepPlan:
    """Plan a step of GPT-2 with two samples in a micro-batch."""
    barriers = BARRIERS.get(kind)
    workload = gpt(stages if barriers else 1)
    times = layer_times(workload, PLAIN_GPU, batch=2, precision="bf16", optimizer="adam")
    return mix_step(
        ParallelLayout(shard=workload.shard, stages=stages, schedule=kind),
        StepRequest(workload, times, replicas, 2),
        lambda part, count: ddp_plan(part, DdpOptions(accumulate=count)),
        micro_batches,
        "bf16",
        NO_RECOMPUTE,
        None,
    )


@pytest.mark.parametrize("stages", [2, 4, 6])
def test_stages_have_equal_shares_of_all_parameters(stages: int) -> None:
    schedule = make_schedule("1f1b_vocab_1", stages, 8)
    parts = [part for part, *_ in cut_model(gpt(stages), schedule, PartitionOptions())]
    assert len(parts) == 2 * stages
    whole = gpt()
    vocabulary = whole.tensors[0].numel  # which the head is tied to
    for share in parts[stages:]:
        assert share.tensors[0].numel * stages == vocabulary
        product = 2 * 64 * vocabulary
        assert share.layers[-1].matmul_flops * stages == product
    blocks = sum(t.numel for part in parts[:stages] for t in part.tensors)
    others = sum(t.numel for t in parts[-1].tensors[1:])  # positions, and the last norm
    assert blocks + vocabulary + others == sum(t.numel for t in whole.tensors)
    assert [len(part.layers) for part in parts[stages:]] == [2] * stages


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_computes_its_share_of_the_whole_vocabulary(kind: str) -> None:
    """The logits' product and loss take 1 / P of the time on each, which no stage has alone."""
    plans = {each: plan_of(each, 4, 8) for each in ("1f1b", kind)}
    seconds = {
        name: Counter(
            {
                stage.name: sum(
                    task.work.duration_s
                    for task in plan.tasks
                    if task.rank_class == stage.name and task.kind in ("forward", "backward")
                )
                for stage in plan.classes
            }
        )
        for name, plan in plans.items()
    }
    even, ends = seconds[kind], seconds["1f1b"]
    assert max(even.values()) == pytest.approx(min(even.values()), rel=1e-6)
    assert even.total() == pytest.approx(ends.total(), rel=0.1)
    assert ends["stage 3"] > 1.5 * ends["stage 1"]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_stages_exchange_what_the_authors_do(kind: str, replicas: int) -> None:
    """Of b s tokens: b s h in fp32 to all, three scores a token, and four times b s h as it is.

    That is an embedding's sum and its gradient, and the gradient of the output layer's input.
    """
    stages, micro_batches = 4, 6
    plan = plan_of(kind, stages, micro_batches, replicas)
    check_plan(plan)
    (pipeline,) = (each for each in plan.communicators if each.name == PIPELINE)
    assert [list(group) for group in pipeline.groups] == [
        list(range(replica, stages * replicas, replicas)) for replica in range(replicas)
    ]
    works = [
        (task.rank_class, task.work)
        for task in plan.tasks
        if isinstance(task.work, Collective) and task.work.communicator == PIPELINE
    ]
    tokens, width = 2 * 64, 768
    for stage in range(stages):
        own = [work for of, work in works if of == f"stage {stage}"]
        sizes = Counter((work.op, work.nbytes, work.times, work.root) for work in own)
        stream = tokens * width * 2
        assert sizes == {
            ("broadcast", tokens * width * 4, 1, (stages - 1) * replicas): micro_batches,
            ("broadcast", stream, 1, 0): micro_batches,
            ("all_reduce", tokens * 4, 3, 0): micro_batches,
            ("all_reduce", stream, 1, 0): 2 * micro_batches,
        }


# ---------------------------------------------------------------- results of the authors

MEASURED = {
    # tokens, words: MFU in % and peak in GB, of 1F1B, Vocab-1 and Vocab-2
    (2048, 32000): ((47.52, 16.01), (53.10, 16.64), (52.56, 15.87)),
    (2048, 128000): ((33.70, 21.00), (52.22, 18.40), (51.95, 17.56)),
    (4096, 64000): ((45.78, 23.98), (58.22, 24.58), (57.94, 23.14)),
    (4096, 256000): ((27.63, 33.86), (57.31, 27.38), (56.61, 26.25)),
}
"""github.com/sail-sg/VocabularyParallelism, artifact/example-results/full-exp.txt: 32 layers of
width 3,072, 128 micro-batches of a sequence, eight stages on eight A100, Megatron-LM."""


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "words"), MEASURED)
def test_steps_and_peaks_are_those_of_the_authors(tmp_path: Path, tokens: int, words: int) -> None:
    """1F1B to 3 %, shares to 10 % and all too quick; of peaks 10 %."""
    for kind, (mfu, peak) in zip(("1f1b", *KINDS), MEASURED[tokens, words], strict=True):
        parallel = f"{{pipeline: {{stages: 8, schedule: {kind}}}}}"
        point = run(scenario_file(tmp_path, parallel, words=words, tokens=tokens)).main
        assert isinstance(point, SizeResult)
        assert 100 * (point.mfu or 0) == pytest.approx(mfu, rel=0.03 if kind == "1f1b" else 0.1)
        assert point.memory.total_bytes / 2**30 == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_wider_vocabularies_cost_all_stages_the_same(tmp_path: Path, kind: str) -> None:
    """A step grows by the work of the words over P stages (section 6: 1F1B's by all of it)."""
    steps = {}
    for schedule in ("1f1b", kind):
        parallel = f"{{pipeline: {{stages: 8, schedule: {schedule}}}}}"
        for words in (64000, 256000):
            path = scenario_file(tmp_path, parallel, words=words, micro_batches=32)
            steps[schedule, words] = run(path).main.step_time_s
    grown = {
        schedule: steps[schedule, 256000] - steps[schedule, 64000] for schedule in ("1f1b", kind)
    }
    assert grown["1f1b"] / grown[kind] == pytest.approx(8, rel=0.25)


def test_fidelities_agree(tmp_path: Path) -> None:
    text = Path(
        scenario_file(tmp_path, "{pipeline: {stages: 4, schedule: 1f1b_vocab_1}}", micro_batches=6)
    ).read_text(encoding="utf-8")
    small = text.replace("hidden: 3072, layers: 32, heads: 24", "hidden: 512, layers: 4, heads: 8")
    path = tmp_path / "small.yaml"
    path.write_text(small, encoding="utf-8")
    flow, message = (
        run(str(path), fidelity=fidelity).main.step_time_s for fidelity in ("flow", "message")
    )
    assert flow == pytest.approx(message, rel=1e-3)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("parallel", "words", "compute", "field"),
    [
        ("{pipeline: {stages: 8, schedule: 1f1b_vocab_1}}", 50257, "", "parallel.pipeline.stages"),
        (
            "{tensor: 2, parallel_loss: false, pipeline: {stages: 4, schedule: 1f1b_vocab_2}}",
            32000,
            "",
            "parallel.parallel_loss",
        ),
        (
            "{pipeline: {stages: 8, schedule: 1f1b_vocab_1, overlap_p2p: false}}",
            32000,
            "",
            "parallel.pipeline.overlap_p2p",
        ),
        (
            "{pipeline: {stages: 8, schedule: 1f1b_vocab_2}}",
            32000,
            ", fused_loss: true",
            "parallel.pipeline.schedule",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(
    tmp_path: Path, parallel: str, words: int, compute: str, field: str
) -> None:
    path = scenario_file(tmp_path, parallel, words=words, compute=compute, micro_batches=8)
    with pytest.raises(InputError, match=field):
        run(path)


def test_models_without_a_vocabulary_are_refused(tmp_path: Path) -> None:
    parallel = "{pipeline: {stages: 4, schedule: 1f1b_vocab_1}}"
    path = Path(scenario_file(tmp_path, parallel, micro_batches=4))
    text = path.read_text(encoding="utf-8")
    model = text[text.index("model:\n") : text.index("compute:")]
    path.write_text(text.replace(f"\n{model}", "\nmodel: {name: resnet50}\n"), encoding="utf-8")
    with pytest.raises(InputError, match="a schedule without these"):
        run(str(path))
