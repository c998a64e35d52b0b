"""Damaged inputs end in an answer or a message; ``python -m tests.fuzz`` tries more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def fuzz(*flags):
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *flags],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["3"])
def test_damaged_inputs_end_in_an_answer_or_a_message(seed):
    ended = fuzz("--inputs", "50", "--seed", seed)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_an_input_is_the_same_in_every_process(tmp_path):
    """What a fuzzer finds can be tried again by its number."""
    script = (
        "from tests.fuzz.inputs import make_input; print([make_input(3, n) for n in range(40)])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env=dict(os.environ, PYTHONPATH=str(ROOT), PYTHONHASHSEED=hash_seed),
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(seen) == 1
