"""What `auto` chooses, beside a published setting of the same model and machine."""

from __future__ import annotations

import pytest

from perfmodel.studies.sweep.executor import ALONE
from reports.choices.published import answer, questions

INTERVAL = 1.05
"""Times as long as the published setting; the 80 % interval of such a step is 12 % wide."""


def test_no_published_setting_is_quicker_by_more_than_the_interval():
    """Llama 3.1 8B on a node: DGX Cloud's recipe has rings of context, which `auto` leaves out."""
    question = next(each for each in questions(["Llama 3.1 8B"]) if each.gpus == 8)
    row = answer(question, ALONE)
    assert row["unproven"] == 0
    assert row["auto_s"] < INTERVAL * row["published_s"]


@pytest.mark.slow
def test_among_measured_settings_the_quickest_is_chosen():
    """GPT of 3.6 billion parameters on 64 A100: thirteen settings were measured (vTrain)."""
    question = next(each for each in questions(["GPT 3.6B"]) if each.gpus == 64)
    row = answer(question, ALONE)
    assert row["its_measured_s"] == row["best_measured_s"]
