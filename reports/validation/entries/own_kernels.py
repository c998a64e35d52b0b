"""Our own measurements of single kernels on one GPU, with their operands in memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from perfmodel.workload.model import ITEM_BYTES
from reports.kernels.records import Record
from reports.validation.entries.entry import Candidate, Collected, LeftOut, rows_of
from reports.validation.entries.kernels import predict_kernel

GPUS = {"h100": "h100-sxm5-80gb", "h200": "h200-sxm5-141gb"}
"""By what files are named after."""
MOVED = {"copy": 2, "addition": 3, "gelu": 2, "norm": 2}
"""Tensors that a kernel reads and writes."""
SHAPE = ("sequences", "tokens", "heads", "kv_heads", "head_size", "causal")


def own_kernels(folder: Path) -> Collected:
    """Find what was measured of kernels that have a formula of their own.

    Attention is that of the library that PyTorch takes, its time that with warm caches, as no
    other was measured.
    """
    found = Collected()
    for name, gpu in GPUS.items():
        path = folder / "measured" / f"{name}_kernels.csv"
        table = f"one_gpu, {name} kernels"
        for cells in rows_of(path):
            made = _record(cells, gpu, table)
            if made is None:
                reason = f"{cells['kind']} {cells['passes']}, of which no formula is"
                found.left_out.append(LeftOut(table, reason))
                continue
            key = (table, made[0], "time")
            found.candidates.append(Candidate(frozenset({key}), partial(predict_kernel, *made)))
    return found


def _record(cells: Mapping[str, str], gpu: str, table: str) -> tuple[str, Record] | None:
    """Name a row, and say what is predicted of it; None: no kernel of it is known."""
    kind, precision, passes = cells["kind"], cells["precision"], cells["passes"]
    common = {"precision": precision, "time_us": cells["time_us"], "passes": passes}
    if kind == "product":
        shape = {name: cells[name] for name in ("rows", "columns", "depth")}
        name = " x ".join(shape.values())
        return f"{precision} {name}", Record(f"product {precision}", gpu, table, common | shape)
    if kind == "attention" and cells["library"] == "default" and passes == "forward":
        own = {name: cells[name] for name in SHAPE} | {"fused": "1", "time_us": cells["warm_us"]}
        name = ", ".join(f"{cells[each]} {each}" for each in SHAPE)
        return f"attention of {name}", Record("attention", gpu, table, common | own)
    if kind in MOVED:
        item = ITEM_BYTES[precision]
        nbytes = MOVED[kind] * item * int(cells["elements"])
        moved = {"item_bytes": str(item), "bytes": str(nbytes)}
        group = "norm" if kind == "norm" else "elementwise"
        row = f"{kind} of {cells['elements']} {precision}"
        return row, Record(group, gpu, table, common | moved)
    return None
