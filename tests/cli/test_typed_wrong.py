"""What people type when they are tired: each is refused with the line that they meant."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app

RUN = ("run", "resnet50-dgx-a100", "--set")
COMPARE = ("compare", "bert-large-v100-25g", "--with")


def lines_of(*args: object) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return str(result.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("collective", "dgx-a100", "--op", "all-reduce"), "Did you mean 'all_reduce'?"),
        (("collective", "dgx-a100", "--library", "ncl"), "Did you mean 'nccl'?"),
        (("collective", "dgx-a100", "--nccl-version", "9.9.9"), "from 2.0 to 2.30"),
        ((*RUN, "library.version='3.1'"), "from 2.0 to 2.30"),
        ((*RUN, "library.version=2.18"), 'allowed: text, in quotes: "2.18"'),
        ((*RUN, "model=resnet50"), "(did you mean model.name=resnet50?)"),
        ((*RUN, "cluster=dgx-a100"), "(did you mean cluster.node=dgx-a100?)"),
        ((*RUN, "library=gloo"), "(did you mean library.name=gloo?)"),
        ((*RUN, "what_if.network_bandwidth=100 Gbit/s"), "a number without unit: a factor on"),
        ((*RUN, "what_if.network_latency=1 us"), "a number without unit: a factor on"),
        (("run", "resnet50-dgx-a100", "--seconds", "5"), "nothing without strategy.kind: auto"),
        ((*RUN, "compute.precision=fp18"), "(did you mean 'fp16'?)"),
        ((*RUN, "parallel.tensor=3"), "--set parallel.tensor: found tensor 3: 3 GPUs together"),
        ((*RUN, "parallel.tensor=3"), "divides the 256 GPUs: 1, 2, 4, 8, 16, 32, 64, 128, ..."),
        ((*RUN, "scale.gpus=256"), "a list such as [256]"),
        ((*RUN, "cluster.nodes=1e9"), "a whole number, without point and exponent"),
        ((*COMPARE, "a=cluster.nodes=3"), "--with a: found an unknown field, 'cluster.nodes=3'"),
        ((*COMPARE, "strategy.bucket_cap=5"), "--with strategy.bucket_cap: found 5 (no unit)"),
        ((*COMPARE, "strategy.bucket_cap"), "--with: found 'strategy.bucket_cap'"),
        (("compare", "bert-large-v100-25g", "--set", "cluster.nodez=3"), "--set cluster.nodez"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(words: tuple[str, ...], said: str) -> None:
    assert said in lines_of(*words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model:\n\tname: resnet50\n", "allowed: YAML 1.2 without tags, indented by spaces"),
        (
            "model:\n  name: resnet50\n  training: {batch_per_gpu: 8}\n",
            (
                "4: model.training: found an unknown field, {'batch_per_gpu': 8}; allowed: "
                "'training' as a section of its own, not indented below 'model'"
            ),
        ),
    ],
)
def test_a_file_that_is_indented_wrongly(text: str, said: str, tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"# How long?\n{text}", encoding="utf-8")
    assert said in lines_of("run", path)


def test_a_folder_is_said_to_be_one(tmp_path) -> None:
    said = "a folder without config.json; allowed: a file, or a folder with a config.json"
    assert said in lines_of("buckets", tmp_path)
    assert said in lines_of("models", tmp_path)


@pytest.mark.parametrize("command", ["verify", "collective", "measure", "calibrate"])
def test_options_show_what_they_take_and_not_its_type(command: str) -> None:
    text = CliRunner().invoke(app, [command, "--help"]).stdout
    options = text[text.index("Options:") :]
    assert not {"<int", "<float", "<str"} & {word[:6].rstrip(">") for word in options.split()}
    assert command != "verify" or "Other orders for each" in options
