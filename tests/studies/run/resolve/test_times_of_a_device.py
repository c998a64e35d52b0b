"""Times of layers belong to a device: another one prices layers anew, or they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.report.common.document import Paragraph
from perfmodel.report.run.text import result_lines
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result

TIMED = """\
perfmodel: 1
kind: model
parameters: [{{name: w, shape: [4096, 4096]}}]
layers: [{{name: linear, parameters: [w], forward: 7 ms, backward: 11 ms{work}}}]
optimizer: 2 ms
{device}
"""
WORK = ", matmul_flops: 1e9"


def answer(
    folder: Path, node: str, device: str = "", work: str = "", compute: str = "", library: str = ""
) -> Result:
    (folder / "timed.yaml").write_text(TIMED.format(device=device, work=work))
    compute = compute or "{source: file, times: timed.yaml, precision: fp32}"
    (folder / "asked.yaml").write_text(
        f"# Whose?\nperfmodel: 1\nmodel: {{file: timed.yaml}}\ncompute: {compute}\n"
        f"cluster: {{node: {node}, gpus_per_node: 1}}\ntraining: {{batch_per_gpu: 64}}\n"
        f"library: {library or '{name: plain}'}\n"
    )
    return run_scenario(load_scenario(str(folder / "asked.yaml")))


@pytest.mark.parametrize(
    ("device", "node"),
    [
        ("", "dgx-h100"),  # whose they are is not stated: of the machine that is asked about
        ("device: h100-sxm5-80gb", "dgx-h100"),
        ("device: cpu-process", "cpu-loopback"),
    ],
)
def test_times_of_the_same_device_stay(tmp_path: Path, device: str, node: str) -> None:
    measured = answer(tmp_path, node, device)
    assert measured.main.step_time_s == pytest.approx(0.020, rel=0.06)
    assert not any("priced anew" in text for text in measured.assumptions)


@pytest.mark.parametrize("device", ["cpu-process", "a100-sxm4-80gb"])
def test_another_device_prices_layers_anew(tmp_path: Path, device: str) -> None:
    measured = answer(tmp_path, "dgx-h100", f"device: {device}", WORK)
    predicted = answer(tmp_path, "dgx-h100", work=WORK, compute="{precision: fp32}")
    assert measured.main.step_time_s == predicted.main.step_time_s < 0.02
    note = f"Times of layers in timed.yaml are of {device}: priced anew for h100-sxm5-80gb."
    assert note in measured.assumptions
    assert note in [block.text for block in result_lines(measured) if isinstance(block, Paragraph)]


def test_a_model_whose_work_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        answer(tmp_path, "dgx-h100", "device: cpu-process")
    (fault,) = caught.value.faults
    assert (fault.field, fault.line) == ("compute.times", 4)
    assert fault.found == "times of cpu-process, on a machine of h100-sxm5-80gb"
    with pytest.raises(InputError, match=r"compute\.times: found 'abacus'"):
        answer(tmp_path, "dgx-h100", "device: abacus")


def test_no_step_of_the_host_is_none_on_gpus_too(tmp_path: Path) -> None:
    asked = {"device": "device: cpu-process", "work": WORK}
    nccl = answer(tmp_path, "dgx-h100", **asked, library="{name: nccl, host_step: 0 s}")
    assert nccl.main.step_time_s < 0.02
    with pytest.raises(InputError, match=r"library\.host_step: found 0\.001 s"):
        answer(tmp_path, "dgx-h100", **asked, library="{name: nccl, host_step: 1 ms}")
