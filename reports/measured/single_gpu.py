"""Measure training steps of zoo models on one GPU, beside what the roofline predicts.

Needs PyTorch with CUDA, torchvision and transformers::

    python reports/measured/single_gpu.py --out reports/measured

Writes ``steps_<gpu>.csv`` (step time and peak memory per model, precision and batch),
``kernels_<gpu>.csv`` (matrix products, element-wise kernels, launches) and checks that the zoo's tensors are
those of the real models. Data are random; times are medians over CUDA events after a warm-up.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
import transformers

from perfmodel.workload.zoo import build

STEPS = [
    # model, precision, batch, sequence length
    ("resnet18", "fp32", 256, None), ("resnet18", "bf16", 256, None),
    ("resnet50", "fp32", 128, None), ("resnet50", "tf32", 128, None), ("resnet50", "fp16", 128, None),
    ("resnet50", "fp16", 256, None), ("resnet50", "fp16", 32, None), ("resnet50", "fp16", 4, None),
    ("resnet101", "tf32", 128, None), ("resnet152", "fp16", 128, None),
    ("vgg16", "tf32", 128, None), ("vgg16", "fp16", 128, None),
    ("inception-v3", "fp16", 128, None), ("vit-b-16", "fp16", 128, None), ("vit-b-16", "tf32", 64, None),
    ("bert-base", "bf16", 64, 128), ("bert-base", "bf16", 16, 512), ("bert-large", "bf16", 32, 128),
    ("bert-large", "tf32", 16, 512), ("bert-large", "bf16", 16, 512),
    ("gpt2", "bf16", 16, 1024), ("gpt2-medium", "bf16", 8, 1024), ("gpt2-large", "bf16", 4, 1024),
    ("gpt2-xl", "bf16", 4, 1024),
]  # fmt: skip


def gpt2(size: str) -> Callable[[], torch.nn.Module]:
    width, depth, heads = {
        "": (768, 12, 12), "-medium": (1024, 24, 16), "-large": (1280, 36, 20), "-xl": (1600, 48, 25)
    }[size]  # fmt: skip
    config = transformers.GPT2Config(n_embd=width, n_layer=depth, n_head=heads)
    return lambda: transformers.GPT2LMHeadModel(config)


def bert(width: int, depth: int, heads: int) -> Callable[[], torch.nn.Module]:
    config = transformers.BertConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    return lambda: transformers.BertModel(config)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "resnet18": torchvision.models.resnet18,
    "resnet34": torchvision.models.resnet34,
    "resnet50": torchvision.models.resnet50,
    "resnet101": torchvision.models.resnet101,
    "resnet152": torchvision.models.resnet152,
    "vgg16": torchvision.models.vgg16,
    "inception-v3": lambda: torchvision.models.inception_v3(init_weights=False),
    "vit-b-16": torchvision.models.vit_b_16,
    "bert-base": bert(768, 12, 12),
    "bert-large": bert(1024, 24, 16),
    "gpt2": gpt2(""),
    "gpt2-medium": gpt2("-medium"),
    "gpt2-large": gpt2("-large"),
    "gpt2-xl": gpt2("-xl"),
}


def check_tensors() -> None:
    """Compare names, shapes and order of the zoo's tensors with the real models'."""
    for name, make in MODELS.items():
        with torch.device("meta"):
            real = [(key, tuple(value.shape)) for key, value in make().named_parameters()]
        zoo = [(tensor.name, tensor.shape) for tensor in build(name).tensors]
        shapes = [shape for _, shape in real] == [shape for _, shape in zoo]
        print(
            f"tensors of {name}: {len(real)}, names {'same' if real == zoo else 'differ'}, "
            f"shapes and order {'same' if shapes else 'DIFFER'}",
            flush=True,
        )


def batch_of(
    name: str, batch: int, length: int | None
) -> Callable[[torch.nn.Module], torch.Tensor]:
    """A function that runs forward on random data and returns the loss."""
    if length is None:
        side = 299 if name == "inception-v3" else 224
        images = torch.randn(batch, 3, side, side, device="cuda")
        labels = torch.randint(0, 1000, (batch,), device="cuda")

        def vision(model: torch.nn.Module) -> torch.Tensor:
            out = model(images)
            if name == "inception-v3":
                return sum(
                    (torch.nn.functional.cross_entropy(o, labels) for o in out),
                    torch.zeros(()).cuda(),
                )
            return torch.nn.functional.cross_entropy(out, labels)

        return vision
    tokens = torch.randint(0, 30000, (batch, length), device="cuda")
    if name.startswith("gpt2"):
        return lambda model: model(tokens, labels=tokens).loss
    return lambda model: model(tokens).last_hidden_state.float().pow(2).mean()


def step_times(name: str, precision: str, batch: int, length: int | None) -> dict[str, Any]:
    """Median times of forward, backward and optimizer, wall time per step, peak memory."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = True
    model = MODELS[name]().cuda().train()
    adam = length is not None or name.startswith("vit")
    optimizer = (
        torch.optim.AdamW(model.parameters())
        if adam
        else torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    )
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    loss_of = batch_of(name, batch, length)
    rows: list[tuple[float, float, float, float]] = []
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    for step in range(25):
        torch.cuda.synchronize()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        marks[0].record()
        with torch.autocast("cuda", dtype=half, enabled=half is not None):
            loss = loss_of(model)
        marks[1].record()
        loss.backward()
        marks[2].record()
        optimizer.step()
        marks[3].record()
        torch.cuda.synchronize()
        if step >= 8:
            spans = [marks[i].elapsed_time(marks[i + 1]) for i in range(3)]
            rows.append((*spans, (time.perf_counter() - began) * 1e3))
    forward, backward, step_opt, wall = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    return {
        "model": name, "precision": precision, "batch": batch, "sequence_length": length or "",
        "optimizer": "adamw" if adam else "sgd-momentum",
        "forward_ms": round(forward, 3), "backward_ms": round(backward, 3),
        "optimizer_ms": round(step_opt, 3), "step_ms": round(wall, 3),
        "peak_memory_bytes": torch.cuda.max_memory_allocated(),
    }  # fmt: skip


def timed_ms(work: Callable[[], object], repeat: int = 30) -> float:
    """Median device time of some work; milliseconds."""
    for _ in range(5):
        work()
    times = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def kernels() -> list[dict[str, Any]]:
    """Matrix products, copies and additions over size, and the host's time per launch."""
    rows: list[dict[str, Any]] = []
    for precision, dtype in (
        ("bf16", torch.bfloat16),
        ("tf32", torch.float32),
        ("fp32", torch.float32),
    ):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        for size in (256, 512, 1024, 2048, 4096, 8192, 16384 if precision == "bf16" else 8192):
            a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
            ms = timed_ms(lambda a=a, b=b: a @ b)
            rows.append(
                {
                    "kernel": f"matmul {precision}",
                    "size": size,
                    "time_us": round(ms * 1e3, 3),
                    "rate": round(2 * size**3 / ms / 1e9, 2),
                    "unit": "TFLOP/s",
                }
            )
    for power in range(16, 33, 2):
        source = torch.randn(2**power // 4, device="cuda")
        target = torch.empty_like(source)
        for name, factor, work in (
            ("copy", 2, lambda: target.copy_(source)),  # noqa: B023
            ("add in place", 3, lambda: target.add_(source)),  # noqa: B023
            ("scaled copy", 2, lambda: torch.mul(source, 0.125, out=target)),  # noqa: B023
        ):
            ms = timed_ms(work)
            rows.append(
                {
                    "kernel": name,
                    "size": 2**power,
                    "time_us": round(ms * 1e3, 3),
                    "rate": round(factor * 2**power / ms / 1e6, 2),
                    "unit": "GB/s",
                }
            )
    small = torch.zeros(16, device="cuda")
    for name, count in (("launch of a small kernel", 4000),):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            small.add_(1.0)
        issued = time.perf_counter() - began
        torch.cuda.synchronize()
        whole = time.perf_counter() - began
        rows.append(
            {
                "kernel": name,
                "size": 64,
                "time_us": round(issued / count * 1e6, 3),
                "rate": round(whole / count * 1e6, 3),
                "unit": "us per kernel to the end",
            }
        )
    for name, pinned in (("host to device, pinned", True), ("host to device, pageable", False)):
        for power in (16, 20, 24, 28, 30):
            host = torch.randn(2**power // 4)
            host = host.pin_memory() if pinned else host
            device = torch.empty(2**power // 4, device="cuda")
            ms = timed_ms(lambda h=host, d=device: d.copy_(h, non_blocking=True), 10)
            back = timed_ms(lambda h=host, d=device: h.copy_(d, non_blocking=True), 10)
            rows.append(
                {
                    "kernel": name,
                    "size": 2**power,
                    "time_us": round(ms * 1e3, 3),
                    "rate": round(2**power / ms / 1e6, 2),
                    "unit": "GB/s",
                }
            )
            rows.append(
                {
                    "kernel": name.replace("host to device", "device to host"),
                    "size": 2**power,
                    "time_us": round(back * 1e3, 3),
                    "rate": round(2**power / back / 1e6, 2),
                    "unit": "GB/s",
                }
            )
    return rows


def write(path: Path, rows: list[dict[str, Any]], about: str) -> None:
    """Write rows with a comment line that says where they were taken."""
    with path.open("w", newline="") as stream:
        stream.write(f"# {about}\n")
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def main() -> None:
    """Measure everything and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.get_device_name().replace(" ", "-").lower()
    about = (
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"torchvision {torchvision.__version__}, transformers {transformers.__version__}, "
        f"eager, {time.strftime('%Y-%m-%d')}; random data, medians of 17 steps"
    )
    check_tensors()
    write(out / f"kernels_{gpu}.csv", kernels(), about)
    rows = []
    for setting in STEPS:
        rows.append(step_times(*setting))
        print(rows[-1], flush=True)
        write(out / f"steps_{gpu}.csv", rows, about)


if __name__ == "__main__":
    main()
