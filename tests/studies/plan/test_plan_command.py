"""``perfmodel plan``: what it prints, writes and returns."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app


def invoke(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


@pytest.mark.slow
def test_the_command_prints_answers(plan_file, tmp_path):
    done = invoke(plan_file(), "-j", 1, "--store", tmp_path / "steps.sqlite", "-o", tmp_path / "o")
    assert done.exit_code == 0, done.output
    assert "Cheapest that finishes in 5 h: bought, 1 node (8 GPUs), in " in done.stdout
    assert "its share of 100,000 USD to buy and electricity; in time if all goes" in done.stdout
    assert "The energy of rented, typo, full is that of the GPUs alone" in done.stderr, (
        "the other's is of whole nodes"
    )
    assert max(map(len, done.stdout.split("Lost is")[0].split("\n\n")[1].splitlines())) <= 120
    assert "Fastest for 100 USD at most" in done.stdout
    assert "Does 'faster' pay?" in done.stdout
    assert "left out: typo, 1 node: topology: found 'dgx-a10'" in done.stdout
    assert "simulated" in done.stdout
    assert "note: The global batch is 64 to 128" in done.stderr
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        "plan.html",
        "plan.md",
        "plan.csv",
        "plan.json",
        "result.xlsx",
    }
    document = invoke(plan_file(), "-j", 1, "--store", tmp_path / "steps.sqlite", "--json")
    assert json.loads(document.stdout) == json.loads((tmp_path / "o" / "plan.json").read_text())


def test_the_command_says_what_is_wrong(plan_file, tmp_path):
    done = invoke(plan_file(), "--set", "plan.deadline=3", "--set", "plan.budget=3")
    assert done.exit_code == 2
    assert "plan.deadline: found 3 (no unit)" in done.stderr
    assert "plan.budget: found 3 (no currency)" in done.stderr
    assert "Traceback" not in done.output
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "-o" in invoke(plan_file(), "-o", tmp_path / "file").stderr


def test_nothing_that_trains_is_a_failure(plan_file):
    text = "plan.candidates=[{name: a, node: nowhere, nodes: [1]}]"
    done = invoke(plan_file(), "-j", 1, "--set", text, "--set", "plan.upgrades=[]")
    assert done.exit_code == 1
    assert "None of the 1 options can train bert-base" in done.stdout
