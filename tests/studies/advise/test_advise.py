"""Advice: every gain is that of a run of its own, what does not fit is not proposed."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.report.advice.page import advice_html
from perfmodel.report.advice.text import advice_lines, headline, limit_words
from perfmodel.report.common.document import Paragraph
from perfmodel.scenario import Scenario, make_scenario
from perfmodel.studies.advise.export import advice_rows, to_json
from perfmodel.studies.advise.model import WORTH, Advice
from perfmodel.studies.advise.run import advise_scenario, apply_changes, gain_of
from perfmodel.studies.advise.settings_changes import list_settings
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.resolve.resolved_scenario import resolve_names
from perfmodel.topology.templates.gpus import load_gpu

SLOW_NETWORK: dict[str, Any] = {
    "model": {"name": "resnet18"},
    "compute": {"precision": "fp32"},
    "cluster": {
        "node": "ethernet-10g", "nodes": 4,
        "fabric": {"kind": "leaf-spine", "oversubscription": 4, "hosts_per_leaf": 2},
    },
    "training": {"batch_per_gpu": 32},
    "plan": {
        "target": {"samples": 1_000_000},
        "candidates": [{"name": "lab", "node": "ethernet-10g", "nodes": [4],
                        "fabric": "one-switch", "price_per_gpu_hour": "2 USD/h"}],
        "upgrades": [{"name": "twice the network", "set": {"what_if.network_bandwidth": 2},
                      "price_per_node": "500 USD"}],
    },
}  # fmt: skip


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
        "hook", "batch", "precision", "strategy", "network adapter", "fabric", "upgrade"
    }  # fmt: skip
    assert [trial.ratio for trial in advice.trials] == sorted(
        (trial.ratio for trial in advice.trials), reverse=True
    )


def test_proposals_gain_more_than_their_parts_and_touch_what_they_say(advice: Advice) -> None:
    alone = {trial.text: trial.ratio for trial in advice.trials}
    for trial in advice.together:
        assert trial.ratio >= max(alone[change.text] for change in trial.changes) - 1e-9
        assert len({change.about for change in trial.changes}) == len(trial.changes)
    assert advice.together[0].touches in ("nothing", "rounding")
    assert [t.touches for t in advice.together] == sorted(
        (t.touches for t in advice.together), key=["nothing", "rounding", "training",
                                                    "hardware"].index)  # fmt: skip
    for fewer, more in zip(advice.together[:1] * 2, advice.together[1:], strict=False):
        assert more.ratio >= (1 + WORTH) * fewer.ratio


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
    assert "src=" not in page.partition("<body>")[2]


def test_what_does_not_fit_is_not_proposed() -> None:
    """A batch four times as large keeps four times the activations: beyond the GPU's 16 GB."""
    large = {**SLOW_NETWORK, "model": {"name": "resnet50"}, "training": {"batch_per_gpu": 150},
             "cluster": {**SLOW_NETWORK["cluster"], "nodes": 1, "fabric": None}}  # fmt: skip
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


def test_an_unknown_node_is_a_fault_of_the_scenario() -> None:
    wrong = {**SLOW_NETWORK, "cluster": {**SLOW_NETWORK["cluster"], "node": "ethernet-11g"}}
    with pytest.raises(InputError, match="ethernet-11g"):
        advise_scenario(make_scenario(wrong), jobs=1)
