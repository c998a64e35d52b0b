"""Tables of what was recorded, and of what is refused as a run refuses it."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from docs.extensions import accuracy_tables, support_tables
from perfmodel.errors import InputError
from perfmodel.scenario.load import make_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.evidence import Grade, load_records
from perfmodel.training.strategies import STRATEGIES


def test_every_record_is_in_one_cell_of_the_matrix() -> None:
    counts = re.findall(r"% \((\d+)\)", accuracy_tables.matrix().replace("\N{NO-BREAK SPACE}", " "))
    assert sum(map(int, counts)) == len(load_records())


def test_the_matrix_says_how_far_off_a_record_was() -> None:
    """One training of GH200, by Megatron: its report says 48 %."""
    (row,) = (line for line in accuracy_tables.matrix().splitlines() if "gh200-96gb" in line)
    assert "megatron 48\N{NO-BREAK SPACE}% (1)" in row


def test_every_grade_has_its_row() -> None:
    text = accuracy_tables.grades()
    assert [text.count(f"| {grade} |") for grade in get_args(Grade)] == [1] * 4


def test_every_strategy_has_its_row() -> None:
    kinds = {row["strategy"]["kind"] for row in support_tables.strategy_rows().values()}
    assert kinds == set(STRATEGIES)


CASES = [
    ("ddp", {"parallel.tensor": 2}, "yes"),
    ("data_parallel", {"parallel.tensor": 2}, "whose workers hold whole models"),
    ("ZeRO-3", support_tables.LAYOUTS["zb_h1"][0], "where backward gathers parameters"),
    ("FSDP2", {"strategy.hook": "fp16"}, "-"),
    ("parameter_server", {"compute.precision": "fp8"}, "of which nobody's fp8 is known"),
]


@pytest.mark.parametrize(("row", "changes", "said"), CASES)
def test_refusals_are_those_of_a_run(row: str, changes, said: str) -> None:
    content = {**support_tables.BASE, **support_tables.strategy_rows()[row], **changes}
    found = support_tables.refusal(content)
    if said in {"yes", "-"}:
        assert found.found == said
    else:
        assert said in found.allowed
    if said == "yes":
        run_scenario(make_scenario(content))
        return
    with pytest.raises(InputError) as caught:
        run_scenario(make_scenario(content))
    assert said == "-" or found.allowed in {fault.allowed for fault in caught.value.faults}


def test_a_table_numbers_its_reasons() -> None:
    text = support_tables.support("precisions")
    numbers = {int(each) for each in re.findall(r"no \((\d+)\)", text)}
    assert numbers == set(range(1, len(numbers) + 1))
    assert all(f"\n{number}. `compute." in text for number in numbers)
    (row,) = (line for line in text.splitlines() if line.startswith("| h100-sxm5-80gb"))
    words = re.sub(r" \(\d+\)", "", row).strip("| ").split(" | ")
    assert words[1:] == ["yes"] * 6 + ["no"] * 3, "mxfp8 and formats of 4 bits need newer GPUs"
