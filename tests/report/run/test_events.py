"""What events cost, on the page, in the terminal and in JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perfmodel.report.common.document import Paragraph
from perfmodel.report.common.html import render_block
from perfmodel.report.run.events import (
    MOST_WAITS_LISTED,
    draw_steps,
    events_section,
    explain_devices,
    group_waits,
    lines,
)
from perfmodel.report.run.page import report_html
from perfmodel.report.run.text import result_lines, to_json
from perfmodel.studies.run.result import (
    BackgroundJobStep,
    DisturbanceCost,
    EventCost,
    Result,
    SizeResult,
    Wait,
)

Changed = Callable[..., Result]
WHAT = DisturbanceCost(
    steps_s=(0.09, 0.13, 0.11),
    undisturbed_s=0.1,
    mean_interval_s=(0.105, 0.115),
    events=(
        EventCost("n5 1.2 times slower", 0.104, 0.006),
        EventCost("traffic <n0/cpu0> to n1/cpu0: at most 1 GB/s", 0.106, 0.004),
    ),
    waits=(
        Wait("all-reduce bucket 0", 0, "n5", 1.0, 0.003, 0.004),
        Wait("all-reduce bucket 1", 1, "", 0.0, 0.0, 0.0),
    ),
    jobs=(BackgroundJobStep("the other", 64, 0.15, 0.12),),
)


@pytest.fixture
def disturbed(with_main: Changed) -> Result:
    return with_main(disturbance=WHAT, step_time_s=0.11)


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_the_terminal_says_what_each_event_costs(disturbed: Result) -> None:
    said = [plain(line) for line in lines(disturbed.main)]
    assert said == [
        (
            "A step takes 110 ms; without any of this it would take 100 ms: 10 % longer. Mean of 3 "
            "steps, 80 % interval of the mean 105 ms to 115 ms."
        ),
        "  n5 1.2 times slower: +6.00 ms a step (+6 %)",
        "  traffic <n0/cpu0> to n1/cpu0: at most 1 GB/s: +4.00 ms a step (+4 %)",
        "  the other, 64 GPUs: a step takes 150 ms, alone 120 ms",
        "n5 is host 5: all are counted from 0.",
        (
            "The longest wait is before all-reduce bucket 0: the others wait 3.00 ms on average, "
            "for n5."
        ),
    ]
    assert "  n5 1.2 times slower: +6.00 ms a step (+6 %)" in [
        plain(block.text) for block in result_lines(disturbed) if isinstance(block, Paragraph)
    ]


def test_a_rank_that_is_seldom_last_is_not_blamed(disturbed: Result) -> None:
    seldom = replace(WHAT, waits=(replace(WHAT.waits[0], share=0.04),))
    said = plain(lines(replace(disturbed.main, disturbance=seldom))[-1])
    assert "for whoever is last, often another one (n5 in 4 % of steps)" in said


def html_section(point: SizeResult) -> str:
    section = events_section(point)
    assert section is not None
    return render_block(section)


@pytest.mark.slow
def test_the_page_has_a_section_with_every_event_and_wait(disturbed: Result) -> None:
    page = plain(html_section(disturbed.main))
    for words in (
        "n5 1.2 times slower",
        "6.00 ms",
        "traffic &lt;n0/cpu0&gt;",
        "18.0 ms",
        "all-reduce bucket 0",
        "Before 1 of 2 collectives nobody waits.",
        "the other",
        "25.0 %",
        'id="figure-steps"',
    ):
        assert words in page
    assert html_section(disturbed.main) in report_html(disturbed)


def test_waits_for_messages_of_all_micro_batches_are_a_row_each_way() -> None:
    waits = [
        Wait(f"{kind} of micro-batch {number} to stage {stage}", None, last, 1.0, waited, waited)
        for kind, stage, last in (("activations", 1, "stage 0"), ("gradients", 0, "stage 1"))
        for number, waited in enumerate((0.004, 0.001, 0.002))
    ]
    groups = group_waits([*waits, Wait("gradient norm", None, "stage 0", 1.0, 0.003, 0.003)])
    assert {name: len(own) for name, own in groups.items()} == {
        "activations to stage 1": 3,
        "gradients to stage 0": 3,
        "gradient norm": 1,
    }


def test_many_waits_are_joined_whatever_their_numbers(disturbed: Result) -> None:
    layers = tuple(
        Wait(f"all-gather of layer {number}", None, "n5", 1.0, 0.001, 0.002) for number in range(40)
    )
    main = replace(disturbed.main, disturbance=replace(WHAT, waits=layers))
    page = plain(html_section(main))
    row = page.partition("<td class=w>all-gather of layer ...</td>")[2].partition("</tr>")[0]
    assert ">40<" in row
    assert ">40.0 ms<" in row  # of all calls together
    assert ">2.00 ms<" in row
    assert "are listed" not in page


def test_unlike_waits_beyond_a_table_are_left_to_the_file(disturbed: Result) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    waits = tuple(Wait(f"op {c}", None, "n5", 1.0, 0.001 * at, 1.0) for at, c in enumerate(letters))
    page = plain(html_section(replace(disturbed.main, disturbance=replace(WHAT, waits=waits))))
    assert page.count("<td class=s>op ") == MOST_WAITS_LISTED
    assert "op z<" in page  # the longest ones
    assert "op a<" not in page
    assert "result.json holds all of them" in page


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("n5/nic3 lost", "n5 is host 5, nic3 its NIC 3: all are counted from 0."),
        ("n12 1.2 times slower", "n12 is host 12: all are counted from 0."),
        ("job 'the other' on 8 nodes, packed", ""),
    ],
)
def test_names_of_hosts_and_parts_are_explained(what: str, said: str) -> None:
    assert explain_devices(replace(WHAT, events=(EventCost(what, 1, 1),), waits=())) == said


def test_rounding_is_no_cost(disturbed: Result) -> None:
    events = (EventCost("job the other on 8 nodes, packed", 0.1, 1e-16),)
    nothing = replace(WHAT, steps_s=(0.1,), mean_interval_s=None, events=events, waits=(), jobs=())
    main = replace(disturbed.main, disturbance=nothing, step_time_s=0.1 + 1e-16)
    assert [plain(line) for line in lines(main)] == [
        "A step takes 100 ms, as long as without any of this.",
        "  job the other on 8 nodes, packed: costs nothing",
    ]
    assert "0.000" not in plain(html_section(main))


def test_one_counted_step_needs_no_figure(disturbed: Result) -> None:
    single = replace(WHAT, steps_s=(0.11,), mean_interval_s=None, jobs=())
    page = plain(html_section(replace(disturbed.main, disturbance=single)))
    assert "figure-steps" not in page
    assert "Over all steps" not in page
    assert "Mean of" not in page


def test_nothing_is_said_where_nothing_happens(result: Result) -> None:
    assert events_section(result.main) is None
    assert lines(result.main) == []
    document = to_json(result)
    assert document["events"] == document["waits"] == document["jobs"] == []
    assert document["undisturbed_s"] is document["mean_interval_s"] is None


def test_json_holds_all_of_it(disturbed: Result) -> None:
    document = to_json(disturbed)
    assert document["undisturbed_s"] == 0.1
    assert document["steps_s"] == [0.09, 0.13, 0.11]
    assert document["mean_interval_s"] == [0.105, 0.115]
    assert document["events"][0] == {
        "what": "n5 1.2 times slower",
        "without_s": 0.104,
        "costs_s": 0.006,
    }
    assert document["waits"][0] == {
        "collective": "all-reduce bucket 0",
        "bucket": 0,
        "last": "n5",
        "share": 1.0,
        "waited_s": 0.003,
        "longest_s": 0.004,
    }
    assert document["jobs"] == [
        {"name": "the other", "gpus": 64, "step_time_s": 0.15, "alone_s": 0.12}
    ]


def test_the_figure_shows_each_step_beside_an_undisturbed_one() -> None:
    bars, line = draw_steps(WHAT).data
    assert list(bars.y) == pytest.approx([90, 130, 110])
    assert list(line.y) == pytest.approx([100, 100])
