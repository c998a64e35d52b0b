"""Advice: every gain is that of a run of its own, what does not fit is not proposed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.report.advice import (
    advice_html,
    advice_lines,
    command,
    headline,
    left_out,
    limit_words,
    power_limits,
    proposals,
)
from perfmodel.report.common import quantities
from perfmodel.report.common.document import Paragraph
from perfmodel.scenario import (
    ClusterSize,
    Scenario,
    change_scenario,
    load_scenario,
    make_scenario,
)
from perfmodel.scenario.sections.plan import Money
from perfmodel.studies.advise import run as run_of_advice
from perfmodel.studies.advise.changes import list_power_limits, list_settings, list_upgrades
from perfmodel.studies.advise.model import Advice, Proposed, Trial, advice_rows, to_json
from perfmodel.studies.advise.run import (
    _best,
    _without_idle,
    advise_scenario,
    apply_changes,
)
from perfmodel.studies.compare import gain_of
from perfmodel.studies.comparison import Change
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.resolve.resolved_scenario import resolve_names
from perfmodel.studies.tune.model import MIN_GAIN
from perfmodel.topology.templates.gpus import load_gpu

SLOW_NETWORK: dict[str, Any] = {
    "model": {"name": "resnet18"},
    "compute": {"precision": "fp32"},
    "cluster": {
        "node": "ethernet-10g",
        "nodes": 4,
        "fabric": {"kind": "leaf-spine", "oversubscription": 4, "hosts_per_leaf": 2},
    },
    "training": {"batch_per_gpu": 32},
    "plan": {
        "target": {"samples": 1_000_000},
        "candidates": [
            {
                "name": "lab",
                "node": "ethernet-10g",
                "nodes": [4],
                "fabric": "one-switch",
                "price_per_gpu_hour": "2 USD/h",
            }
        ],
        "upgrades": [
            {
                "name": "twice the network",
                "set": {"what_if.network_bandwidth": 2},
                "price_per_node": "500 USD",
            }
        ],
    },
}


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return make_scenario(SLOW_NETWORK)


@pytest.fixture(scope="module")
def progress() -> list[tuple[int, int]]:
    return []


@pytest.fixture(scope="module")
def advice(scenario: Scenario, progress: list[tuple[int, int]]) -> Advice:
    return advise_scenario(
        scenario, jobs=1, progress=lambda done, total: progress.append((done, total))
    )


@pytest.mark.slow
def test_a_gain_is_that_of_a_run_with_the_change(scenario: Scenario, advice: Advice) -> None:
    """The interval is one of the ratio: errors that both runs share cancel in it."""
    best = advice.together[0]
    base = run_scenario(scenario, with_first=False).main
    changed = run_scenario(apply_changes(scenario, best.changes), with_first=False).main
    assert best.point is not None
    assert best.gain == gain_of(base, changed)
    assert best.ratio == changed.samples_per_s / base.samples_per_s
    low, high = best.gain.interval  # type: ignore[union-attr,misc]
    assert low < best.ratio < high
    apart = changed.interval_s[1] / changed.interval_s[0] * base.interval_s[1] / base.interval_s[0]  # type: ignore[index]
    assert high / low < apart


def test_what_an_issue_lists_is_tried(advice: Advice) -> None:
    abouts = {trial.changes[0].about for trial in advice.trials}
    assert abouts >= {
        "hook",
        "batch",
        "precision",
        "strategy",
        "network adapter",
        "fabric",
        "upgrade",
    }
    assert [trial.ratio for trial in advice.trials] == sorted(
        (trial.ratio for trial in advice.trials), reverse=True
    )


def test_power_limits_are_those_of_a_run(scenario: Scenario, advice: Advice) -> None:
    """A V100 of 250 W, which waits for its network: energy falls by more than speed."""
    assert [trial.text for trial in advice.power] == [
        f"boards limited to {watts} W" for watts in (210, 180, 140)
    ]
    for trial, watts in zip(advice.power, (210, 180, 140), strict=True):
        changed = change_scenario(scenario, {"cluster.node.power_limit": f"{watts} W"})
        point = run_scenario(changed).main
        slower = advice.base.step_time_s / point.step_time_s
        assert trial.ratio == pytest.approx(slower)
        assert advice.energy_ratio(trial) == pytest.approx(watts / 250 / slower)
    assert advice.thrifty == advice.power
    assert "To save energy: boards limited to 210 W" in power_limits(advice)[0]
    assert len(to_json(advice)["power_limits"]) == 3


def test_a_limit_that_holds_may_go(scenario: Scenario) -> None:
    limited = change_scenario(scenario, {"cluster.node.power_limit": "180 W"})
    node, _, _ = resolve_names(limited)
    size = ClusterSize(4, 4, 1)
    offered = [each for each in list_upgrades(limited, node, size, 1.0) if each.about == "power"]
    assert [each.text for each in offered] == ["boards at their 250 W"]
    lower = list_power_limits(limited, node)
    assert [each.text for each in lower] == ["boards limited to 140 W"]
    stated = change_scenario(scenario, {"compute.measured_step": "100 ms at batch 32"})
    assert not [*list_power_limits(stated, node)]


def test_rails_and_channels_are_tried_where_there_are_several(scenario: Scenario) -> None:
    several = change_scenario(
        scenario, {"cluster": {"node": "dgx-a100", "nodes": 4, "fabric": "leaf-spine"}}
    )
    node, workload, _ = resolve_names(several)
    size = ClusterSize(32, 4, 8)
    fabrics = [each.text for each in list_upgrades(several, node, size, 1.0)]
    assert "rail-optimised fabric" in fabrics
    gpu = load_gpu("a100-sxm4-80gb")
    settings = [*list_settings(several, workload, gpu, 32)]
    channels = [each for each in settings if each.about == "channels"]
    assert [each.fields["library.env"] for each in channels] == [
        {"NCCL_MIN_CTAS": "16"},
        {"NCCL_MIN_CTAS": "32"},
    ]
    own = change_scenario(several, {"library.env": {"NCCL_MAX_CTAS": "8"}})
    assert not [e for e in list_settings(own, workload, gpu, 32) if e.about == "channels"]


def test_intervals_hold_the_gain_also_where_steps_differ_in_size(advice: Advice) -> None:
    for trial in (*advice.trials, *advice.together):
        assert trial.gain is not None
        assert trial.gain.interval is not None
        low, high = trial.gain.interval
        assert low - 1e-9 <= trial.ratio <= high + 1e-9, trial.text


def test_proposals_gain_more_than_their_parts_and_touch_what_they_say(advice: Advice) -> None:
    alone = {trial.text: trial.ratio for trial in advice.trials}
    for trial in advice.together:
        assert trial.ratio >= max(alone[change.text] for change in trial.changes) - 1e-9
        assert len({change.about for change in trial.changes}) == len(trial.changes)
    assert advice.together[0].touches in ("nothing", "rounding")
    assert [t.touches for t in advice.together] == sorted(
        (t.touches for t in advice.together),
        key=["nothing", "rounding", "training", "hardware"].index,
    )
    for fewer, more in zip(advice.together[:1] * 2, advice.together[1:], strict=False):
        assert more.ratio >= (1 + MIN_GAIN) * fewer.ratio


def test_progress_ends_with_all(advice: Advice, progress: list[tuple[int, int]]) -> None:
    assert advice.simulated <= progress[-1][1]
    assert progress[-1][0] == progress[-1][1]


def test_prices_of_the_plan_are_named(advice: Advice) -> None:
    upgrade = next(t for t in advice.trials if t.changes[0].about == "upgrade")
    assert upgrade.changes[0].price is not None
    assert upgrade.changes[0].price.amount == 2000
    assert advice.hourly is not None
    assert advice.hourly.amount == 8
    text = " ".join(b.text for b in advice_lines(advice) if isinstance(b, Paragraph))
    assert "USD of rent instead of" in text


def test_rent_of_an_upgrade_is_in_the_cost_of_samples(advice: Advice) -> None:
    rented = Proposed("x", {}, "upgrade", "hardware", rent=Money(4.0, "USD"))
    trial = replace(advice.together[0], changes=(rented,))
    assert trial.point is not None
    (line,) = proposals(replace(advice, together=(trial,)))
    cost = 1e6 * 12 / 3600 / trial.point.samples_per_s  # 8 USD an hour, and 4 more
    assert f"cost {quantities.count(cost)} USD of rent" in line


def test_a_colleague_says_what_limits_and_what_helps(advice: Advice) -> None:
    sentence = headline(advice).replace("\N{NO-BREAK SPACE}", " ")
    assert "NIC" in advice.base.bottleneck or "spine" in advice.base.bottleneck
    assert limit_words(advice)[1:] in sentence
    assert "of the time per image" in sentence
    first = advice.best
    assert first is not None
    assert f"{100 * first.saves:.0f} %" in sentence


def test_the_answer_is_exported_whole(advice: Advice) -> None:
    document = to_json(advice)
    assert len(document["changes"]) == len(advice.trials)
    assert document["together"][0]["gain_interval"][0] < document["together"][0]["gain"]
    assert len(advice_rows(advice)) == len(advice.trials) + len(advice.together)
    page = advice_html(advice)
    assert "Each change alone" in page
    main = page.partition("<main>")[2].partition("</main>")[0]
    assert main
    assert "src=" not in main


def test_chips_that_are_no_gpus_are_called_so() -> None:
    tpu = {
        **SLOW_NETWORK,
        "model": {"name": "resnet18"},
        "compute": {"precision": "bf16"},
        "cluster": {"node": "tpu-v5e", "nodes": 4, "fabric": "torus"},
    }
    found = advise_scenario(make_scenario(tpu), jobs=1)
    said = (block.text for block in advice_lines(found) if isinstance(block, Paragraph))
    lines = [text.replace("\N{NO-BREAK SPACE}", " ") for text in said]
    assert any("4 chips" in line for line in lines)
    assert not any("GPU" in line or "NVLink" in line for line in lines)


def test_what_does_not_fit_is_not_proposed() -> None:
    """A batch four times as large keeps four times the activations: beyond the GPU's 16 GB."""
    large = {
        **SLOW_NETWORK,
        "model": {"name": "resnet50"},
        "training": {"batch_per_gpu": 150},
        "cluster": {**SLOW_NETWORK["cluster"], "nodes": 1, "fabric": None},
    }
    found = advise_scenario(make_scenario(large), jobs=1)
    assert "batch 600 per GPU" in {trial.text for trial in found.too_big}
    most = found.base.memory.capacity_bytes - found.base.memory.reserve_bytes
    for trial in found.too_big:
        assert trial.memory is not None
        assert trial.memory.total_bytes > 0.9 * most
        assert trial.point is None
    proposed = [trial for trial in (*found.trials, *found.together) if trial.memory is not None]
    assert all(t.memory.total_bytes <= found.base.memory.capacity_bytes for t in proposed)  # type: ignore[union-attr]
    names = {change.text for trial in found.together for change in trial.changes}
    assert not names & {trial.text for trial in found.too_big}


def test_whose_memory_is_too_small_is_said(advice: Advice) -> None:
    """What is offloaded may fit the GPU and not the host."""
    fitting = advice.base.memory
    for_gpu = replace(fitting, activations_bytes=2 * fitting.capacity_bytes)
    for_host = replace(fitting, host_bytes=3 * 2**40, host_capacity_bytes=2.0**40)
    too_big = tuple(
        replace(trial_of(1.0, name), memory=memory)
        for name, memory in (("batch 600", for_gpu), ("offloaded", for_host))
    )
    gpu, host = (
        line.replace("\N{NO-BREAK SPACE}", " ")
        for line in left_out(replace(advice, too_big=too_big))
        if line.startswith("Does not fit")
    )
    assert "of a GPU" in gpu
    assert "batch 600" in gpu
    assert "offloaded" not in gpu
    assert host == (
        "Does not fit the host: offloaded (the host's memory takes 3.00 TiB of 1.00 TiB (300 %))."
    )


def test_measured_times_are_not_second_guessed() -> None:
    """Times of a file hold for its batch and precision: nothing that would change them is tried."""
    plain = make_scenario(SLOW_NETWORK)
    _, workload, _ = resolve_names(plain)
    gpu = load_gpu("v100-sxm2-32gb")
    everything = {p.about for p in list_settings(plain, workload, gpu, 4)}
    from_file = plain.compute.model_copy(update={"source": "file"})
    measured = plain.model_copy(update={"compute": from_file})
    others = {p.about for p in list_settings(measured, workload, gpu, 4)}
    assert everything - others >= {"batch", "precision", "compiled"}
    assert "hook" in others


def test_no_processes_are_refused(scenario: Scenario) -> None:
    with pytest.raises(InputError, match="-j: found 0; allowed: 1 or more"):
        advise_scenario(scenario, jobs=0)


def test_an_unknown_node_is_a_fault_of_the_scenario() -> None:
    wrong = {**SLOW_NETWORK, "cluster": {**SLOW_NETWORK["cluster"], "node": "ethernet-11g"}}
    with pytest.raises(InputError, match="ethernet-11g"):
        advise_scenario(make_scenario(wrong), jobs=1)


def test_the_command_repeats_what_flags_had_set(advice: Advice) -> None:
    fields = {"training.batch_per_gpu": 16}
    asked = change_scenario(advice.scenario, fields, flags=tuple(fields))
    again = command(replace(advice, scenario=asked), advice.together[0])
    assert "--set 'training.batch_per_gpu=16'" in again
    assert again.count("--set") == 1 + sum(len(c.fields) for c in advice.together[0].changes)


def test_the_command_names_a_file_that_no_name_stands_for(advice: Advice, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"# How long?\n{json.dumps(SLOW_NETWORK)}\n")
    own = replace(advice, scenario=load_scenario(path))
    assert command(own, advice.together[0]).startswith(f"perfmodel run {path} --set")
    shipped = replace(advice, scenario=load_scenario("resnet50-dgx-a100"))
    assert command(shipped, advice.together[0]).startswith("perfmodel run resnet50-dgx-a100 --set")


def test_the_command_sets_fields_of_a_section_after_the_section(advice: Advice) -> None:
    changes = (
        Proposed("gradients in bf16", {"strategy.reduce_dtype": "bf16"}, "hook"),
        Proposed("FSDP", {"strategy": {"kind": "fsdp"}}, "strategy"),
    )
    together = command(advice, Trial(changes, None, None, None))
    assert together.index("strategy={") < together.index("strategy.reduce_dtype")
    assert apply_changes(advice.scenario, changes).strategy.reduce_dtype == "bf16"  # type: ignore[union-attr]


def test_another_stage_keeps_what_else_is_set() -> None:
    own = {"kind": "zero", "stage": 1, "communication_data_type": "bf16"}
    scenario = make_scenario(
        {**SLOW_NETWORK, "strategy": own, "compute": {"precision": "fp32", "recompute": "full"}}
    )
    _, workload, _ = resolve_names(scenario)
    proposals = list(list_settings(scenario, workload, load_gpu("v100-sxm2-32gb"), 4))
    fields = {each.text: each.fields for each in proposals}
    assert fields["ZeRO stage 2"] == {"strategy.stage": 2}
    assert fields["FSDP"] == {"strategy": {"kind": "fsdp"}}
    assert "ZeRO stage 1" not in fields
    assert not any("with full recomputation" in text for text in fields)  # it has that already


@pytest.mark.parametrize(
    ("strategy", "offered"),
    [
        (
            {"kind": "ddp"},
            {"strategy": {"kind": "fsdp", "param_dtype": "bf16", "reduce_dtype": "fp32"}},
        ),
        ({"kind": "fsdp"}, {"strategy.param_dtype": "bf16", "strategy.reduce_dtype": "fp32"}),
        ({"kind": "fsdp", "param_dtype": "bf16"}, None),
    ],
)
def test_parameters_that_layers_run_in_are_offered_in_place_of_autocast(
    strategy: dict[str, Any], offered: dict[str, Any] | None
) -> None:
    scenario = make_scenario(
        {**SLOW_NETWORK, "strategy": strategy, "compute": {"precision": "bf16"}}
    )
    _, workload, _ = resolve_names(scenario)
    proposals = list_settings(scenario, workload, load_gpu("a100-sxm4-80gb"), 4)
    fields = {each.text: each.fields for each in proposals}
    assert fields.get("FSDP with parameters in bf16") == offered


@pytest.mark.parametrize(("node", "count"), [("ethernet-10g", 1), ("dgx-a100", 0)])
def test_upgrades_are_of_the_nodes_that_the_plan_says(node: str, count: int) -> None:
    plan = SLOW_NETWORK["plan"]
    candidate = {**plan["candidates"][0], "node": node}
    upgrade = {**plan["upgrades"][0], "candidates": ["lab"]}
    changed = {**plan, "candidates": [candidate], "upgrades": [upgrade]}
    scenario = make_scenario({**SLOW_NETWORK, "plan": changed})
    spec, _, _ = resolve_names(scenario)
    offered = list(list_upgrades(scenario, spec, ClusterSize(4, 4, 1), 1.0))
    assert sum(each.about == "upgrade" for each in offered) == count


def trial_of(ratio: float, *names: str) -> Trial:
    """Changes that gain so much together."""
    changes = tuple(Proposed(name, {f"compute.{name}": True}, name) for name in names)
    return Trial(changes, None, None, Change(ratio, None))


def test_twice_the_samples_per_second_save_half_of_the_time() -> None:
    assert trial_of(2.0, "a").saves == 0.5


def test_a_change_without_which_it_gains_as_much_is_left_out() -> None:
    gains = {"a": 1.5, "b": 1.1, "c": 1.2, "ab": 1.502, "ac": 1.7, "bc": 1.3}
    whole = trial_of(1.705, "a", "b", "c")
    trials: Any = SimpleNamespace(
        of=lambda changes: trial_of(
            gains["".join(c.text for c in changes)], *(c.text for c in changes)
        )
    )
    assert [change.text for change in _without_idle(trials, whole).changes] == ["a", "c"]


def test_the_quickest_value_of_a_setting_is_proposed_if_it_saves_anything() -> None:
    steps_s = {5 * 2**20: 0.9, 50 * 2**20: 0.8, 100 * 2**20: 0.95}
    job = SimpleNamespace(
        scenario=make_scenario(SLOW_NETWORK), strategy=SimpleNamespace(options=lambda own: own)
    )
    prepared: Any = SimpleNamespace(
        job=job, step=lambda own: SimpleNamespace(step_time_s=steps_s[own.bucket_cap])
    )
    caps = ["5 MiB", "50 MiB", "100 MiB"]
    assert _best(prepared, "bucket_cap", caps, 1.0) == "50 MiB"
    assert _best(prepared, "bucket_cap", caps, 0.8) is None


def test_adapters_are_offered_on_top_of_what_the_scenario_imagines() -> None:
    factors = []
    for own in (1, 2):
        scenario = make_scenario({**SLOW_NETWORK, "what_if": {"network_bandwidth": own}})
        spec, _, _ = resolve_names(scenario)
        offered = list_upgrades(scenario, spec, ClusterSize(4, 4, 1), 1.0)
        factors.append(
            [
                each.fields["what_if.network_bandwidth"]
                for each in offered
                if each.about == "network adapter"
            ]
        )
    assert factors == [[2.5, 5.0], [5.0, 10.0]]


@pytest.mark.slow
def test_no_number_of_advice_is_read_out_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change gets another text, of words that once had a meaning."""
    words = ("buckets", "CUDA graphs", "gradients", "hook", "boards limited to 7 W", "network")

    def few(scenario: Scenario, *rest: Any) -> list[Proposed]:
        kept = {"fp16 hook", "bf16 hook", "CUDA graphs"}
        return [each for each in list_settings(scenario, *rest) if each.text in kept]

    def numbers(advice: Advice) -> list[Any]:
        first = advice.together[0].changes[0]
        sides = (advice.trials, advice.together, advice.power, advice.thrifty)
        return [
            *([(t.ratio, t.gain, t.saves, t.sure) for t in trials] for trials in sides),
            [advice.energy_ratio(trial) for trial in advice.power],
            (first.is_plural, first.takes_article, len(power_limits(advice))),
        ]

    monkeypatch.setattr(run_of_advice, "scan_settings", lambda _: ())
    monkeypatch.setattr(run_of_advice, "list_upgrades", lambda *_: ())
    monkeypatch.setattr(run_of_advice, "list_settings", few)
    expected = numbers(advise_scenario(make_scenario(SLOW_NETWORK), jobs=1))
    texts: dict[str, str] = {}

    def renamed(proposals: Iterable[Proposed]) -> list[Proposed]:
        return [
            replace(each, text=texts.setdefault(each.text, f"{choose.choice(words)} {len(texts)}"))
            for each in proposals
        ]

    choose = random.Random(32)
    monkeypatch.setattr(run_of_advice, "list_settings", lambda *given: renamed(few(*given)))
    monkeypatch.setattr(
        run_of_advice, "list_power_limits", lambda *given: renamed(list_power_limits(*given))
    )
    assert numbers(advise_scenario(make_scenario(SLOW_NETWORK), jobs=1)) == expected
    assert len(texts) > 4


@pytest.mark.parametrize(
    ("text", "named_as", "verb"),
    [
        ("fp16 hook", "the fp16 hook", "saves"),
        ("channels-last layout", "the channels-last layout", "saves"),
        ("torch.compile", "torch.compile", "saves"),
        ("CUDA graphs", "CUDA graphs", "save"),
        ("at least 16 channels of NCCL", "at least 16 channels of NCCL", "save"),
        ("2 micro-batches a step", "2 micro-batches a step", "save"),
    ],
)
def test_changes_are_named_as_people_say_them(
    scenario: Scenario, advice: Advice, text: str, named_as: str, verb: str
) -> None:
    _, workload, _ = resolve_names(scenario)
    gpu = load_gpu("v100-sxm2-32gb")
    change = next(p for p in list_settings(scenario, workload, gpu, 4) if p.text == text)
    alone = replace(advice.trials[0], changes=(change,))
    sentence = headline(replace(advice, trials=(alone,), together=(alone,)))
    assert f"; {named_as} {verb} " in sentence
