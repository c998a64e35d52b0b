"""A loss apart from fused kernels: what it moves and keeps more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.model_changes import fuse_by_hand
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo.decoder_sizes import SHAPES
from perfmodel.workload.zoo.llama import llama
from reports.validation.strategies.unfused_loss import keep_loss_apart
from tests.activations import activation_bytes

SMALL = replace(SHAPES["llama2-7b"], layers=2)


def test_a_loss_apart_keeps_four_bytes_of_a_logit_instead_of_two():
    model = llama("small", dtype="bf16", sequence_length=512, shape=SMALL)
    fused, apart = fuse_by_hand(model), keep_loss_apart(model)
    logits = 512 * 32000
    kept = [activation_bytes(each, 1, "bf16", compiled=True) for each in (fused, apart)]
    assert kept[1] - kept[0] == 2 * logits
    gpu = load_gpu("a100-sxm4-80gb")
    times = [
        layer_times(each, gpu, batch=1, precision="bf16", compiled=True) for each in (fused, apart)
    ]
    passes_s = (times[1].forward_s - times[0].forward_s)[-1]
    passes_s += (times[1].backward_s - times[0].backward_s)[-1]
    moved = passes_s * gpu.memory_Bps * gpu.memory_efficiency / (2 * logits)
    assert moved == pytest.approx(26 - 4, rel=0.1)  # of 16 bits: 13 of fp32 instead of 4
