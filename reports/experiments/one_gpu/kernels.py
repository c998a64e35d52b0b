"""Time matrix products, attention and kernels that memory limits, on the GPU at hand.

Kernels are replayed from a CUDA graph, so that the host's launches are not in the times, over
copies of the operands that together exceed the caches.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

Row = dict[str, object]

COLUMNS = (
    *("kind", "precision", "passes", "rows", "columns", "depth"),
    *("sequences", "tokens", "heads", "kv_heads", "head_size", "causal"),
    *("library", "elements", "time_us", "warm_us"),
)
"""`time_us` with operands from memory, `warm_us` with the same operands again and again."""

COLD_BYTES = 256 << 20
"""Of all copies of the operands together: several times the second cache of any GPU."""

MOST_COPIES = 32

PRODUCT_ROWS = (64, 256, 1024, 4096, 16384)
"""Tokens of a step; weights are those of layers from BERT-base to Llama-70B."""

PRODUCT_SHAPES = (
    *((768, 768), (3072, 768), (768, 3072), (2304, 768), (50257, 768), (1024, 1024), (4096, 1024)),
    *((2048, 2048), (11264, 2048), (2048, 5632), (4096, 4096), (28672, 4096), (8192, 8192)),
    (28672, 8192),
)
"""Columns and depth."""

ATTENTIONS = (
    *((1, 512, 16, 16, 64), (8, 512, 16, 16, 64), (64, 512, 16, 16, 64), (8, 1024, 12, 12, 64)),
    *((32, 1024, 12, 12, 64), (1, 2048, 32, 8, 128), (4, 2048, 32, 8, 128), (1, 4096, 32, 32, 128)),
    *((1, 8192, 32, 8, 128), (1, 16384, 8, 8, 128), (4, 4096, 32, 32, 64), (128, 197, 12, 12, 64)),
)
"""Sequences, tokens, heads, heads of keys and head size."""

ELEMENTS = (1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 28)
"""Of kernels that memory limits."""


def measure_kernels(torch: Any) -> Iterator[Row]:
    """Measure all kernels, one after the other."""
    yield from _products(torch)
    yield from _attentions(torch)
    yield from _memory_bound(torch)


def time_us(torch: Any, runs: Sequence[Callable[[], object]], repeats: int = 5) -> float:
    """Median time of one of `runs`, replayed one after the other from a graph; microseconds."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for run in runs[:2]:
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for run in runs:
            run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    times = []
    for _ in range(repeats):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(runs))
    return statistics.median(times)


def _times(torch: Any, make: Callable[[], Callable[[], object]], nbytes: int) -> Row:
    """Time a kernel of operands of `nbytes` with cold operands, and with warm ones."""
    copies = max(2, min(MOST_COPIES, -(-COLD_BYTES // max(1, nbytes))))
    cold = [make() for _ in range(copies)]
    repeats = 20 if nbytes < COLD_BYTES // 8 else 4
    found: Row = {
        "time_us": round(time_us(torch, cold), 3),
        "warm_us": round(time_us(torch, cold[:1] * repeats), 3),
    }
    return found


def _products(torch: Any) -> Iterator[Row]:
    types = {"bf16": torch.bfloat16, "fp32": torch.float32, "tf32": torch.float32}
    for precision, (columns, depth), rows in itertools.product(types, PRODUCT_SHAPES, PRODUCT_ROWS):
        if precision != "bf16" and (rows > 4096 or columns * depth > 3072 * 8192):
            continue
        torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
        dtype = types[precision]

        def make(size: tuple[int, int, int] = (rows, columns, depth), dtype: Any = dtype) -> Any:
            rows, columns, depth = size
            left = torch.randn(rows, depth, device="cuda").to(dtype)
            right = torch.randn(columns, depth, device="cuda").to(dtype)
            return partial(
                torch.mm,
                left,
                right.t(),
                out=torch.empty(rows, columns, dtype=dtype, device="cuda"),
            )

        item = 2 if precision == "bf16" else 4
        nbytes = item * (rows * depth + columns * depth + rows * columns)
        shape = {"rows": rows, "columns": columns, "depth": depth}
        times = _times(torch, make, nbytes)
        yield {"kind": "product", "precision": precision, "passes": "forward", **shape, **times}
        torch.cuda.empty_cache()


def _attentions(torch: Any) -> Iterator[Row]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    libraries = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "default": None,
    }
    names = ("sequences", "tokens", "heads", "kv_heads", "head_size")
    attend = partial(torch.nn.functional.scaled_dot_product_attention, enable_gqa=True)
    for (library, backend), size in itertools.product(libraries.items(), ATTENTIONS):
        _sequences, tokens, heads, kv_heads, _head_size = size
        causal = tokens not in (512, 197)

        def operand(count: int, size: tuple[int, ...] = size) -> Any:
            made = torch.randn(size[0], count, size[1], size[4], device="cuda")
            return made.to(torch.bfloat16).requires_grad_()

        own = dict(zip(names, size, strict=True)) | {"causal": int(causal), "library": library}
        row: Row = {"kind": "attention", "precision": "bf16", **own}
        kept = [backend] if backend is not None else list(SDPBackend.__members__.values())[1:]
        try:
            with sdpa_kernel(kept):
                query, key, value = operand(heads), operand(kv_heads), operand(kv_heads)
                forward = partial(attend, query, key, value, is_causal=causal)
                result = forward()
                gradient = torch.randn_like(result)

                def backward(
                    result: Any = result, operands: Any = (query, key, value), g: Any = gradient
                ) -> Any:
                    return torch.autograd.grad(result, operands, g, retain_graph=True)

                with torch.no_grad():
                    yield row | {
                        "passes": "forward",
                        "warm_us": round(time_us(torch, [forward] * 8), 3),
                    }
                yield row | {"passes": "backward", "warm_us": round(_event_us(torch, backward), 3)}
        except RuntimeError as error:
            yield row | {"passes": f"refused: {str(error).splitlines()[0][:60]}"}
        torch.cuda.empty_cache()


def _event_us(torch: Any, run: Callable[[], object], inner: int = 10) -> float:
    """Median time of a run between events of the device, without a graph; microseconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000)  # the host runs ahead meanwhile
        begin.record()
        for _ in range(inner):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / inner)
    return statistics.median(times)


def _memory_bound(torch: Any) -> Iterator[Row]:
    functional = torch.nn.functional
    for elements, precision in itertools.product(ELEMENTS, ("bf16", "fp32")):
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        item, width = (2 if precision == "bf16" else 4), 1024
        weight = torch.ones(width, device="cuda", dtype=dtype)

        def filled(dtype: Any = dtype, elements: int = elements) -> Any:
            return torch.randn(elements // 1024, 1024, device="cuda").to(dtype)

        makers: dict[str, Callable[[], Callable[[], object]]] = {
            "copy": lambda: partial(filled().copy_, filled()),
            "addition": lambda: partial(torch.add, filled(), filled(), out=filled()),
            "gelu": lambda: partial(functional.gelu, filled()),
            "norm": lambda w=weight: partial(functional.layer_norm, filled(), (1024,), w, w),
            "rms norm": lambda w=weight: partial(functional.rms_norm, filled(), (1024,), w),
            "softmax": lambda: partial(functional.softmax, filled(), -1),
            "dropout": lambda: partial(functional.dropout, filled(), 0.1),
        }
        for kind, make in makers.items():
            times = _times(torch, make, 3 * item * elements)
            yield {
                "kind": kind,
                "precision": precision,
                "passes": "forward",
                "elements": elements,
                **times,
            }
            torch.cuda.empty_cache()
