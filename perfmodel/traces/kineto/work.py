"""Work on the timeline that a step follows: kernels of a GPU, or operators of a CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.traces.kineto.collective_calls import communication_mask
from perfmodel.traces.kineto.event_table import BACKENDS, Events, EventTable

EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = EVALUATE + "torch::autograd::AccumulateGrad"
COPY_IN = "torch::distributed::reducer::mul_out"
COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


@dataclass(frozen=True, slots=True)
class Work:
    """Pieces of work in order of their begin.

    `taken_s`: from the end of all work before to the end of this one: its gap and its time.
    `issued_s`: when the host launched it.
    `owner`: outermost operator that launched it (index in `Owners`), -1: none.
    `kind`: number that alike work has in common.
    `nbytes`: of copies; 0 otherwise.
    """

    start: FloatArray
    end: FloatArray
    taken_s: FloatArray
    gap_s: FloatArray
    issued_s: FloatArray
    owner: NDArray[np.int64]
    kind: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    on_cpu: bool


@dataclass(frozen=True, slots=True)
class Owners:
    """Outermost operators of all threads, by begin."""

    events: Events
    names: tuple[str, ...]

    def name(self, index: int) -> str:
        """Name of an operator."""
        return self.names[int(self.events.name[index])]


def outermost(events: Events) -> Events:
    """Those that lie in no other event of their thread."""
    chosen = np.zeros(len(events), dtype=bool)
    for thread in np.unique(events.thread):
        rows = np.flatnonzero(events.thread == thread)
        ends = np.maximum.accumulate(events.end[rows])
        before = np.concatenate([[-np.inf], ends[:-1]])
        # Times are whole nanoseconds at best: an operator may begin where its parent ends.
        chosen[rows] = events.start[rows] >= before - 1e-9
    return events.where(chosen)


def owners_of(table: EventTable) -> Owners:
    """Find the outermost operators."""
    return Owners(outermost(table.ops), table.names)


def work_of(table: EventTable, owners: Owners) -> Work:
    """All work but communication."""
    device = table.device.where(~communication_mask(table))
    if len(device):
        return _device_work(table, device, owners)
    busy = np.isin(owners.events.name, table.named("c10d::", *BACKENDS, "record_param_comms"))
    chosen = np.flatnonzero(~busy)
    events = owners.events.where(~busy)
    lengths, gaps = _taken(events)
    kind = events.name * (1 << 31) + events.detail
    zeros = np.zeros(len(events), dtype=np.int64)
    return Work(
        events.start, events.end, lengths, gaps, events.start, chosen, kind, zeros, on_cpu=True
    )


def _device_work(table: EventTable, device: Events, owners: Owners) -> Work:
    issued, threads = _launched(table, device)
    owner = np.full(len(device), -1, dtype=np.int64)
    for thread in np.unique(owners.events.thread):
        rows = np.flatnonzero(owners.events.thread == thread)
        mine = np.flatnonzero(threads == thread)
        at = np.searchsorted(owners.events.start[rows], issued[mine], side="right") - 1
        inside = (at >= 0) & (issued[mine] <= owners.events.end[rows][np.maximum(at, 0)])
        owner[mine[inside]] = rows[at[inside]]
    lengths, gaps = _taken(device)
    kind = device.name * (1 << 31) + np.minimum(device.detail, (1 << 31) - 1)
    copies = np.isin(device.name, table.named("Memcpy"))
    nbytes = np.where(copies, device.detail, 0)
    return Work(device.start, device.end, lengths, gaps, issued, owner, kind, nbytes, on_cpu=False)


def _launched(table: EventTable, device: Events) -> tuple[FloatArray, NDArray[np.int64]]:
    """When, and on which thread, each piece of work was launched; its own begin if not known."""
    launches = table.launches.where(table.launches.key >= 0)
    order = np.argsort(launches.key, kind="stable")
    keys = launches.key[order]
    issued, threads = device.start.copy(), np.full(len(device), -1, dtype=np.int64)
    if len(keys):
        at = np.minimum(np.searchsorted(keys, device.key), len(keys) - 1)
        launched = keys[at] == device.key
        issued[launched] = launches.start[order][at][launched]
        threads[launched] = launches.thread[order][at][launched]
    return issued, threads


def _taken(events: Events) -> tuple[FloatArray, FloatArray]:
    """Time from the end of all earlier work to the end of each piece, and the gap in it."""
    ends = np.maximum.accumulate(events.end) if len(events) else events.end
    before = np.concatenate([events.start[:1], ends[:-1]])
    lengths = np.maximum(0.0, events.end - before)
    return np.asarray(lengths), np.maximum(0.0, events.start - before)


def overlap_s(start: FloatArray, end: FloatArray, spans: list[tuple[float, float]]) -> FloatArray:
    """Part of each interval that lies in any of some spans, which do not overlap; seconds."""
    total = np.zeros(len(start))
    for low, high in spans:
        total += np.maximum(0.0, np.minimum(end, high) - np.maximum(start, low))
    return total
