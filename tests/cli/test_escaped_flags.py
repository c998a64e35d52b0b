"""Whatever the parser of flags says of one, it shows no character that a terminal would obey."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import COMMANDS, build_app

EVIL = "a\x1b[31m\u202eb\x07"

WORDS = [
    [EVIL],  # no such command
    [f"--{EVIL}"],
    ["run"],
    ["run", "resnet50-dgx-a100", f"--{EVIL}"],
    ["run", "resnet50-dgx-a100", f"--fidelity={EVIL}"],
    ["run", "resnet50-dgx-a100", "--set", EVIL],
    ["run", "resnet50-dgx-a100", "--profile", EVIL],
    ["run", EVIL],
    ["run", "resnet50-dgx-a100", EVIL],
    ["compare", EVIL, EVIL],
    ["sweep", EVIL, "--jobs", EVIL],
    ["collective", "dgx-a100", "--nodes", EVIL],
    ["collective", "dgx-a100", "--op", EVIL],
    ["collective", "dgx-a100", "-b", EVIL],
    ["collective", "dgx-a100", "--env", EVIL],
    ["collective", EVIL],
    ["topology", EVIL],
    ["topology", "show", EVIL],
    ["topology", "show", "dgx-a100", "--nodes", EVIL],
    ["topology", "show", "dgx-a100", "--fabric", EVIL],
    ["measure", EVIL],
    ["measure", "ring", "--ranks", EVIL],
    ["measure", "ring", "--backend", EVIL],
    ["tune", EVIL, f"-{EVIL}"],
    ["plan", EVIL],
    ["validate", f"--{EVIL}"],
    ["calibrate", EVIL],
]


@pytest.mark.parametrize(
    "words", WORDS, ids=[" ".join(w).encode("unicode_escape").decode() for w in WORDS]
)
def test_no_control_character_reaches_the_terminal(words: list[str]) -> None:
    done = CliRunner().invoke(build_app(COMMANDS), words)
    assert done.exit_code == 2, done.output
    text = done.output + done.stderr
    assert text.strip()
    assert not [c for c in text if not (c.isprintable() or c in "\n\t")]
    assert EVIL not in text
