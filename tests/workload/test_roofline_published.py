"""Published single-GPU training throughputs, and what the roofline says of them.

Run as a script it prints the table of residuals::

    python tests/workload/test_roofline_published.py
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import pytest

from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.roofline import layer_times, step_s
from perfmodel.workload.zoo import build_model

DLE = "github.com/NVIDIA/DeepLearningExamples"
LAMBDA = "github.com/lambdal/deeplearning-benchmark, pytorch"
DLPERF = "github.com/Oneflow-Inc/DLPerf, NVIDIADeepLearningExamples/PyTorch"
PADDLE = "github.com/PaddlePaddle/Perf, OtherReports/PyTorch"
TIMM = (
    "github.com/huggingface/pytorch-image-models, "
    "results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv"
)


@dataclass(frozen=True)
class Published:
    """One published throughput in samples per second; batch 0 = not stated (256 taken)."""

    model: str
    gpu: str
    precision: str
    batch: int
    samples_per_s: float
    source: str
    sequence_length: int | None = None
    channels_last: bool = False
    fused_attention: bool = True
    optimizer: str = "sgd-momentum"
    dtype: str = "fp32"

    @property
    def predicted(self) -> float:
        """Samples per second that the roofline predicts."""
        batch = self.batch or 256
        times = layer_times(
            build_model(self.model, dtype=self.dtype, sequence_length=self.sequence_length),
            load_gpu(self.gpu),
            batch=batch,
            precision=self.precision,
            optimizer=self.optimizer,
            channels_last=self.channels_last,
            fused_attention=self.fused_attention,
        )
        return batch / step_s(times)

    @property
    def error(self) -> float:
        """Predicted over published step time, less one: positive is too slow."""
        return self.samples_per_s / self.predicted - 1


def _resnet50() -> list[Published]:
    """NVIDIA's mixed-precision rows run channels last; the others PyTorch's default layout.

    Left out: Lambda's half-precision rows for H200 and B200, which are the same 3080 images per
    second (and B200's TF32 2967): something other than the GPU limits them.
    """
    rows = [
        ("v100-sxm2-16gb", "fp32", 0, 367.0, DLE, False),
        ("v100-sxm2-32gb", "fp32", 0, 356.0, DLE, False),
        ("v100-sxm2-16gb", "fp16", 0, 1200.0, DLE, True),
        ("v100-sxm2-32gb", "fp16", 0, 1156.0, DLE, True),
        ("v100-sxm2-16gb", "fp32", 128, 369.0, LAMBDA, False),
        ("v100-sxm2-16gb", "fp16", 256, 833.0, LAMBDA, False),
        ("v100-sxm2-16gb", "fp32", 128, 367.29, DLPERF, False),
        ("v100-sxm2-16gb", "fp16", 256, 827.86, DLPERF, False),
        ("v100-sxm2-32gb", "fp32", 256, 370.194, PADDLE, False),
        ("v100-sxm2-32gb", "fp16", 256, 790.033, PADDLE, False),
        (
            "v100-sxm2-16gb",
            "fp32",
            32,
            329.0,
            "github.com/pytorch/pytorch, benchmarks/distributed/ddp",
            False,
        ),
        ("a100-sxm4-80gb", "tf32", 0, 938.0, DLE, False),
        ("a100-sxm4-80gb", "fp16", 0, 2470.0, DLE, True),
        ("a100-sxm4-40gb", "tf32", 256, 924.989, PADDLE, False),
        ("a100-sxm4-40gb", "fp16", 256, 1449.65, PADDLE, False),
        ("a100-sxm4-80gb", "tf32", 640, 1066.0, LAMBDA, False),
        ("a100-sxm4-80gb", "fp16", 1280, 1582.0, LAMBDA, False),
        ("a100-pcie-80gb", "tf32", 640, 1014.0, LAMBDA, False),
        ("a100-pcie-80gb", "fp16", 1280, 1527.0, LAMBDA, False),
        ("a100-pcie-40gb", "tf32", 360, 882.0, LAMBDA, False),
        ("a100-pcie-40gb", "fp16", 720, 1396.0, LAMBDA, False),
        ("h100-sxm5-80gb", "tf32", 640, 1893.0, LAMBDA, False),
        ("h100-sxm5-80gb", "fp16", 1280, 2790.0, LAMBDA, False),
        ("h200-sxm5-141gb", "tf32", 0, 2259.0, LAMBDA, False),
        ("rtx-3090", "tf32", 224, 513.0, LAMBDA, False),
        ("rtx-3090", "fp16", 448, 905.0, LAMBDA, False),
        ("rtx-4090", "tf32", 224, 721.0, LAMBDA, False),
        ("rtx-4090", "fp16", 448, 1301.0, LAMBDA, False),
    ]
    return [
        Published("resnet50", gpu, precision, batch, rate, source, channels_last=nhwc)
        for gpu, precision, batch, rate, source, nhwc in rows
    ]


def _timm() -> list[Published]:
    """PyTorch 1.12, AMP, channels last; its Inception trains without the auxiliary classifier."""
    rows = [
        ("resnet18", 512, 3481.78),
        ("resnet34", 512, 2036.51),
        ("resnet50", 512, 1218.01),
        ("resnet101", 256, 747.89),
        ("resnet152", 192, 501.44),
        ("vgg16", 384, 546.06),
        ("vgg19", 384, 457.37),
        ("inception-v3", 384, 782.35),
        ("vit-b-16", 192, 392.99),
    ]
    return [
        Published(
            model, "rtx-3090", "fp16", batch, rate, TIMM, channels_last=True, fused_attention=False
        )
        for model, batch, rate in rows
    ]


def _bert() -> list[Published]:
    """Before fused attention; pre-training heads are in the published runs and not in ours.

    PaddlePaddle ran NVIDIA's script for PyTorch, whose fp16 is Apex' O2: parameters in fp16.
    TensorFlow's rows in fp16 are read as autocast, which their graphs are not: up to 36 % too slow.

    Left out: DLPerf's PyTorch rows (a step takes a third longer than with the four other
    frameworks of the same table: its head scores every position) and DeepLearningExamples' Paddle
    rows (above the A100's reachable rate at 512 tokens: padding is skipped).
    """
    rows = [
        ("bert-base", 128, "v100-sxm2-32gb", "fp32", 96, 158.611, PADDLE),
        ("bert-base", 128, "v100-sxm2-32gb", "fp16", 96, 639.16, PADDLE),
        ("bert-base", 128, "a100-sxm4-40gb", "tf32", 128, 873.714, PADDLE),
        ("bert-base", 128, "a100-sxm4-40gb", "fp16", 128, 1542.296, PADDLE),
        ("bert-large", 128, "v100-sxm3-32gb", "fp32", 32, 49.97, f"{DLE}, TensorFlow2"),
        ("bert-large", 128, "v100-sxm3-32gb", "fp16", 60, 206.50, f"{DLE}, TensorFlow2"),
        ("bert-large", 512, "v100-sxm3-32gb", "fp32", 6, 11.06, f"{DLE}, TensorFlow2"),
        ("bert-large", 512, "v100-sxm3-32gb", "fp16", 10, 40.95, f"{DLE}, TensorFlow2"),
        ("bert-large", 128, "a100-sxm4-80gb", "tf32", 176, 282.98, f"{DLE}, TensorFlow2"),
        ("bert-large", 128, "a100-sxm4-80gb", "fp16", 312, 485.59, f"{DLE}, TensorFlow2"),
        ("bert-large", 512, "a100-sxm4-80gb", "tf32", 22, 54.92, f"{DLE}, TensorFlow2"),
        ("bert-large", 512, "a100-sxm4-80gb", "fp16", 40, 96.52, f"{DLE}, TensorFlow2"),
    ]
    return [
        Published(
            model,
            gpu,
            precision,
            batch,
            rate,
            source,
            sequence_length=length,
            fused_attention=False,
            optimizer="adam",
            dtype="fp16" if source == PADDLE and precision == "fp16" else "fp32",
        )
        for model, length, gpu, precision, batch, rate, source in rows
    ]


def _depthwise() -> list[Published]:
    """EfficientNet by NVIDIA (PyTorch 21.03), and ConvNeXt in either layout."""
    nchw = TIMM.replace("nhwc", "nchw")
    rows = [
        ("efficientnet_b0", "a100-sxm4-80gb", "tf32", 0, 1078.0, DLE, False),
        ("efficientnet_b0", "a100-sxm4-80gb", "fp16", 0, 2489.0, DLE, True),
        ("efficientnet_b0", "v100-sxm2-16gb", "fp32", 0, 655.0, DLE, False),
        ("efficientnet_b0", "v100-sxm2-32gb", "fp16", 0, 1401.0, DLE, True),
        ("efficientnet_b0", "rtx-3090", "fp16", 512, 1751.72, TIMM, True),
        ("efficientnet_b0", "rtx-3090", "fp16", 384, 1459.11, nchw, False),
        ("convnext_tiny", "rtx-3090", "fp16", 256, 819.24, TIMM, True),
        ("convnext_tiny", "rtx-3090", "fp16", 256, 813.16, nchw, False),
    ]
    return [
        Published(model, gpu, precision, batch, rate, source, channels_last=nhwc)
        for model, gpu, precision, batch, rate, source, nhwc in rows
    ]


PUBLISHED = (*_resnet50(), *_timm(), *_bert(), *_depthwise())


def test_half_of_the_step_times_are_within_a_tenth_and_few_beyond_a_third():
    errors = [abs(row.error) for row in PUBLISHED]
    assert statistics.median(errors) < 0.10
    assert sum(error > 0.33 for error in errors) <= 1
    assert max(errors) < 0.37


def test_depthwise_convolutions_in_32_bits_and_in_either_layout():
    errors = {(row.gpu, row.precision, row.channels_last): row.error for row in _depthwise()}
    for kind in (("a100-sxm4-80gb", "tf32", False), ("v100-sxm2-16gb", "fp32", False)):
        assert abs(errors[kind]) < 0.1  # 24 and 37 % too quick as products
    assert errors["rtx-3090", "fp16", True] == pytest.approx(
        errors["rtx-3090", "fp16", False], abs=0.02
    )


def test_no_bias():
    assert abs(statistics.mean(row.error for row in PUBLISHED)) < 0.06


def test_the_faster_gpu_is_predicted_faster():
    rates = {(row.gpu, row.precision): row.predicted for row in PUBLISHED if row.source == LAMBDA}
    order = ["v100-sxm2-16gb", "rtx-4090", "a100-pcie-40gb", "a100-sxm4-80gb", "h100-sxm5-80gb"]
    halves = [rates[gpu, "fp16"] for gpu in order]
    assert halves == sorted(halves)


if __name__ == "__main__":
    errors = []
    for row in PUBLISHED:
        errors.append(abs(row.error))
        layout = " NHWC" if row.channels_last else ""
        length = f" s={row.sequence_length}" if row.sequence_length else ""
        print(
            f"{row.model + length:18} {row.gpu:16} {row.precision + layout:10} b={row.batch:<5}"
            f"{row.samples_per_s:9.1f} {row.predicted:9.1f} {row.error:+7.0%}  {row.source}"
        )
    errors.sort()
    print(f"median {errors[len(errors) // 2]:.0%}, worst {errors[-1]:.0%} of {len(errors)}")
