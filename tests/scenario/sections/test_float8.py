"""What of fp8 a scenario may ask for: faults name the field, what was found and what is allowed."""

from __future__ import annotations

import pytest

from perfmodel import run
from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario

TEXT = """\
# How fast is fp8?
perfmodel: 1
model: {{name: llama3.2-1b, dtype: {dtype}, sequence_length: {tokens}}}
compute: {{precision: {precision}, compiled: {compiled}{more}}}
strategy: {{kind: {kind}}}
parallel: {{{parallel}}}
cluster: {{node: {node}, nodes: 1}}
training: {{batch_per_gpu: 1}}
"""


SHARDED = "megatron, use_distributed_optimizer: true"
EAGER = {"compiled": "false"}


def scenario(tmp_path, recipe=None, **changes):
    more = "" if recipe is None else f", fp8: {{{recipe}}}"
    fields = {
        "dtype": "bf16",
        "precision": "fp8",
        "compiled": "true",
        "kind": "ddp",
        "node": "dgx-h100",
        "more": more,
        "parallel": "",
        "tokens": 512,
        **changes,
    }
    path = tmp_path / "fp8.yaml"
    path.write_text(TEXT.format(**fields), encoding="utf-8")
    return load_scenario(path)


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("recipe: tensorwise", {"precision": "bf16"}, "'fp8' with 'precision: fp8' alone"),
        ("recipe: rowwise, library: transformer_engine", {}, "a recipe of transformer_engine"),
        ("recipe: int8", {}, "compute.fp8.recipe: found 'int8'; allowed: .*'delayed'"),
        ("recipe: tensorwise, reduce_amax: true", {}, "'reduce_amax' with library: transf"),
        ("recipe: current, amax_history_len: 16", {}, "'amax_history_len' with recipe: delayed"),
        ("recipe: delayed, first_last_layers_bf16: true", {}, "another recipe than delayed"),
        ("recipe: current, num_layers_at_end_in_bf16: 2", {}, "'first_last_layers_bf16: true'"),
        ("recipe: rowwise, enable_fsdp_float8_all_gather: true", {"kind": "fsdp"}, "tensorwise al"),
        ("recipe: tensorwise, precompute_float8_dynamic_scale_for_fsdp: true", {}, "all_gather: t"),
        ("recipe: mxfp8, fp8_param_gather: true", {}, "recipe: delayed, current or blockwise"),
        ("recipe: mxfp4, fp8_param_gather: true", {}, "recipe: delayed, current or blockwise"),
        ("recipe: mxfp8, library: torchao", EAGER, "'compiled: true' with recipe"),
        (
            "recipe: tensorwise, enable_fsdp_float8_all_gather: true",
            {},
            "enable_fsdp_float8_all_gather: found true; allowed: false, or strategy.kind: fsdp",
        ),
        ("fp8_param_gather: true", {}, "fp8_param_gather: found true; allowed: false, or strategy"),
        (None, {"kind": "ddp, join: true"}, "reduce_amax: found true; allowed: false with strat"),
        (None, {"kind": "data_parallel"}, "compute.precision: found 'fp8'; allowed: another"),
        (None, {"precision": "fp8, source: file, times: t.csv", **EAGER}, "'source: roofline'"),
        ("tp_only_amax_red: true", {"parallel": "tensor: 2"}, "tp_only_amax_red: found true"),
        (None, {"dtype": "fp16"}, "model.dtype: found 'fp16'; allowed: 'bf16' or 'fp32'"),
        (None, {"kind": "fsdp, param_dtype: fp16"}, "param_dtype: found 'fp16' with compute.prec"),
    ],
)
def test_faults_of_the_file(tmp_path, recipe, changes, message):
    with pytest.raises(InputError, match=message):
        scenario(tmp_path, recipe, **changes)


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        (None, {"node": "dgx-a100"}, "compute.precision: found 'fp8'; allowed: .*a100"),
        ("recipe: mxfp8", {}, "compute.fp8.recipe: found 'mxfp8'; allowed: 'delayed', 'current'"),
        ("recipe: tensorwise, filter_fqns: [router]", {}, "compute.fp8.filter_fqns.0: found 'rou"),
    ],
)
def test_faults_of_the_hardware_and_the_model_have_their_line(tmp_path, recipe, changes, message):
    with pytest.raises(InputError, match=message) as raised:
        run(scenario(tmp_path, recipe, **changes))
    assert raised.value.faults[0].line == 4


def test_libraries_follow_from_recipes(tmp_path):
    assert scenario(tmp_path, "recipe: rowwise").compute.fp8.library == "torchao"
    assert scenario(tmp_path, "recipe: current").compute.fp8.library == "transformer_engine"
    assert scenario(tmp_path).compute.fp8 is None


@pytest.mark.slow
def test_fp8_is_quicker_than_bf16_and_says_over_which_peak_mfu_is(tmp_path):
    narrow = run(scenario(tmp_path, tokens=4096))
    wide = run(scenario(tmp_path, precision="bf16", tokens=4096))
    assert narrow.main.compute_s < wide.main.compute_s
    peaks = (wide.main.mfu / narrow.main.mfu) * (
        narrow.main.samples_per_s / wide.main.samples_per_s
    )
    assert peaks == pytest.approx(1979 / 989)
    assert any("MFU is over the dense peak of fp8" in each for each in narrow.assumptions)
    assert not any("fp8" in each for each in wide.assumptions)
    # both passes of the step agree on greatest values
    calls = {use.op: use.calls for use in narrow.main.communication}
    plain = {use.op: use.calls for use in wide.main.communication}
    assert calls["all_reduce"] == plain["all_reduce"] + 2
