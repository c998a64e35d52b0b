"""What is said of a scaling curve: worked by hand on curves of round numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from perfmodel.report.run import sizes
from perfmodel.report.run.page import report_html
from perfmodel.report.run.scaling import findings, good_sentence, knee_sentence
from perfmodel.report.run.text import run_markdown, sizes_csv
from perfmodel.studies.run.result import Result, SizeResult

SPACE = "\N{NO-BREAK SPACE}"


@pytest.fixture(scope="module")
def curve(result: Result) -> Callable[..., Result]:
    """Make a result of (GPUs, samples/s) and, for some sizes, intervals of the step."""

    def make(
        speeds: Sequence[tuple[int, float]],
        intervals: dict[int, tuple[float, float]] | None = None,
        bottlenecks: Sequence[str] | None = None,
    ) -> Result:
        first, each = speeds[0]
        points: list[SizeResult] = []
        for at, (gpus, speed) in enumerate(speeds):
            batch = 10 * gpus
            points.append(
                replace(
                    result.main,
                    gpus=gpus,
                    nodes=max(1, gpus // 8),
                    samples_per_s=speed,
                    step_time_s=batch / speed,
                    global_batch=batch,
                    scaling_efficiency=speed / gpus / (each / first),
                    interval_s=(intervals or {}).get(gpus),
                    bottleneck=bottlenecks[at] if bottlenecks else "compute",
                    limit="communication" if bottlenecks else "compute",
                )
            )
        return replace(result, points=tuple(points), efficiency_base=first)

    return make


def plain(text: str) -> str:
    return text.replace(SPACE, " ")


def test_marginal_efficiency_and_knee(curve: Callable[..., Result]) -> None:
    # One GPU: 100/s. The second adds 90, the next two 85 each, the next four 50 each.
    found = curve([(1, 100.0), (2, 190.0), (4, 360.0), (8, 560.0)])
    marginal = [row.marginal for row in sizes.size_gains(found)]
    assert marginal[0] is None
    assert marginal[1:] == pytest.approx([0.9, 0.85, 0.5])
    knee = sizes.knee(found)
    assert knee is not None
    assert (knee.gpus, knee.beyond) == (4, 8)
    assert knee.value == pytest.approx(0.5)
    assert "The knee is at 4 GPUs" in plain(knee_sentence(found))
    assert "brings 50 %" in plain(knee_sentence(found))
    # Efficiencies 0.95, 0.9, 0.7: 90 % holds up to 4, where it is just met.
    good = sizes.good_until(found)
    assert good is not None
    assert (good.gpus, good.beyond) == (4, 8)


def test_no_knee_where_every_growth_is_worth_it(curve: Callable[..., Result]) -> None:
    # To 32 from 8: 2100 / 24 = 87.5 of 100 per GPU; from 16: 1400 / 16, the same.
    found = curve([(8, 800.0), (16, 1500.0), (32, 2900.0)])
    knee = sizes.knee(found)
    assert knee is not None
    assert (knee.gpus, knee.beyond) == (32, None)
    assert knee.value == pytest.approx(0.875)
    sentence = plain(knee_sentence(found))
    assert sentence.startswith("No knee up to 32 GPUs: from any smaller size on each added GPU")
    assert "at least 80 % of what a GPU of 8 GPUs trains" in sentence


def test_a_bad_size_on_the_way_is_no_knee(curve: Callable[..., Result]) -> None:
    # The second GPU brings 50. Growing to 4 brings 280 for three, or 230 for two: over 90 each.
    found = curve([(1, 100.0), (2, 150.0), (4, 380.0), (8, 400.0)])
    knee = sizes.knee(found)
    assert knee is not None
    assert (knee.gpus, knee.beyond, knee.exceptions) == (4, 8, (2,))
    assert knee.value == pytest.approx(0.05)
    assert "(growing to 2 does not)" in plain(knee_sentence(found))
    assert "90 % or more up to 4 GPUs, but not on 2" in plain(good_sentence(found))


def test_what_a_growth_lost_has_to_come_back(curve: Callable[..., Result]) -> None:
    # From 16 to 32 each GPU brings 100, yet from 8 to 32 only 1400 / 24 = 58.
    found = curve([(8, 800.0), (16, 600.0), (32, 2200.0)])
    knee = sizes.knee(found)
    assert knee is not None
    assert (knee.gpus, knee.beyond) == (8, 16)
    sentence = plain(knee_sentence(found))
    assert sentence.startswith("The knee is at 8 GPUs, the smallest size: from 8 to 16")
    assert "lowers the total throughput" in sentence
    said = " ".join(findings(curve([(8, 800.0), (16, 600.0)])))
    assert "The quickest size is 8 GPUs, not the largest" in plain(said)


def test_intervals_of_throughput_and_efficiency_turn_round(curve: Callable[..., Result]) -> None:
    # 16 GPUs, 160 samples: 0.1 s predicted, 0.08 to 0.2 s; so 2000 down to 800 samples/s.
    found = curve([(1, 100.0), (16, 1600.0)], {16: (0.08, 0.2)})
    row = sizes.size_gains(found)[1]
    assert row.samples == pytest.approx((800.0, 2000.0))
    assert row.efficiency is row.point.scaling_efficiency_interval
    assert sizes.size_gains(found)[0].samples is None


def test_knee_moves_between_the_ends_of_the_intervals(curve: Callable[..., Result]) -> None:
    # At the slow end 4 GPUs make 250/s: the knee moves to 2. At the quick end it stays at 4.
    speeds = [(1, 100.0), (2, 190.0), (4, 370.0)]
    found = curve(speeds, {4: (0.1, 40 / 250)})
    sentence = plain(knee_sentence(found))
    assert "; 2 or 4 GPUs at the ends of the 80 % intervals" in sentence
    sure = curve(speeds, {4: (40 / 371, 40 / 369)})
    assert "the same at both ends" in plain(knee_sentence(sure))
    assert "ends of the" not in knee_sentence(curve(speeds))


def test_what_all_sizes_share_does_not_move_the_knee(curve: Callable[..., Result]) -> None:
    """Steps are known to 20 %, all of them off alike, and efficiency to a percent."""
    speeds = [(1, 100.0), (2, 198.0), (4, 390.0)]
    wide = {gpus: (0.8 * 10 * gpus / speed, 1.2 * 10 * gpus / speed) for gpus, speed in speeds}
    steps = curve(speeds, wide)
    sure = replace(
        steps,
        points=tuple(
            replace(p, scaling_efficiency_interval=(p.scaling_efficiency - 0.01, 1.0))
            for p in steps.points
        ),
    )
    slow, quick = sizes.ends(sure) or ([], [])
    assert slow == pytest.approx([99.0, 196.0, 386.0])
    assert quick == pytest.approx([100.0, 200.0, 400.0])
    assert "the same at both ends" in plain(knee_sentence(sure))


def test_same_link_of_another_host_is_no_change(curve: Callable[..., Result]) -> None:
    names = ["compute", "n0/nic0 -> leaf0 (ethernet)", "n3/nic1 -> leaf2 (ethernet)"]
    found = curve([(1, 10.0), (8, 70.0), (16, 130.0)], bottlenecks=names)
    assert [row.moved for row in sizes.size_gains(found)] == [False, True, False]
    assert [(run.first.gpus, run.last.gpus, run.first.bottleneck) for run in sizes.runs(found)] == [
        (1, 1, "compute"),
        (8, 16, "n0/nic0 -> leaf0 (ethernet)"),
    ]
    said = plain(" ".join(findings(found)))
    assert "compute on 1 GPU; n0/nic0 -> leaf0 (ethernet) on 8 to 16 GPUs" in said


def test_sizes_without_an_interval_are_named(result: Result, curve: Callable[..., Result]) -> None:
    some = curve([(1, 100.0), (2, 190.0), (4, 360.0)], {4: (0.1, 0.2)})
    assert "No interval on 1, 2 GPUs: the spread" in plain(" ".join(findings(some)))
    assert "No size has an interval" in " ".join(findings(result))
    assert findings(replace(result, points=result.points[:1])) == []


def test_csv_holds_the_numbers_and_leaves_unknown_ones_empty(curve: Callable[..., Result]) -> None:
    found = curve([(1, 100.0), (16, 1600.0)], {16: (0.08, 0.2)})
    rows = list(csv.DictReader(io.StringIO(sizes_csv(found))))
    assert [row["gpus"] for row in rows] == ["1", "16"]
    assert (rows[0]["step_low_s"], rows[0]["marginal_efficiency"]) == ("", "")
    assert float(rows[1]["step_time_s"]) == found.main.step_time_s
    assert (float(rows[1]["step_low_s"]), float(rows[1]["step_high_s"])) == (0.08, 0.2)
    assert float(rows[1]["samples_low_per_s"]) == pytest.approx(800.0)
    assert float(rows[1]["backward_s"]) == found.main.breakdown_s["backward"]


@pytest.mark.slow
def test_one_size_claims_nothing_about_scaling(result: Result) -> None:
    # 100 % "relative to itself" would be read as perfect scaling.
    alone = replace(result, points=result.points[-1:], efficiency_base=result.main.gpus)
    table = sizes.sizes_table(alone)
    assert "Efficiency" not in table.titles
    (row,) = table.rows
    words = [
        pair
        for pair, right in zip(zip(table.titles, row, strict=True), table.numeric, strict=True)
        if not right
    ]
    assert words == [("Bottleneck", alone.main.bottleneck)]
    page, text = report_html(alone), run_markdown(alone)
    for shown in (page, text):
        assert "so how it scales is not known" in shown
        assert "Weak scaling" not in shown
        assert "An added GPU brings" not in shown
    assert "<span>Scaling efficiency</span><strong>not known</strong>" in page
