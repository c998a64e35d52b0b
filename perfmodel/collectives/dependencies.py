"""Which send must wait for which: derived from the chunks that sends read and write.

A send reads one chunk at its source when it starts and writes one at its destination when it
lands. For each (rank, chunk) a read waits for the last write before it (read after write), and a
write for the last write and for the reads since (write after write, write after read). Sends of
one round read the state from before it, so they never wait for each other to land; but one that
overwrites what another of the same round reads may land only after that other has started.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.collectives.schedule import Ints, Round, Schedule


@dataclass(frozen=True, slots=True)
class Sends:
    """All sends of a schedule with what each must wait for.

    `after[i]`: sends of earlier rounds that must have landed before send i starts.
    `held_by[i]`: sends of the same round that must have started before send i lands.
    Arrays have shape (sends,).
    """

    src: Ints
    dst: Ints
    src_chunk: Ints
    dst_chunk: Ints
    nbytes: Ints
    channel: Ints
    reduce: np.ndarray[tuple[int], np.dtype[np.bool_]]
    round: Ints
    after: tuple[tuple[int, ...], ...]
    held_by: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.src)


def unrolled(schedule: Schedule) -> Sends:
    """Unroll a schedule and derive the dependencies of its sends."""
    rounds = list(schedule.rounds())
    columns = ("src", "dst", "src_chunk", "dst_chunk", "nbytes", "channel", "reduce")

    def joined(name: str) -> Ints:
        parts = [getattr(part, name) for part in rounds]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    arrays = {name: joined(name) for name in columns}
    arrays["reduce"] = arrays["reduce"].astype(np.bool_)
    number = np.repeat(np.arange(len(rounds)), [len(part.src) for part in rounds])
    after, held_by = _derive(rounds)
    return Sends(**arrays, round=number, after=after, held_by=held_by)  # type: ignore[arg-type]


Waits = tuple[tuple[int, ...], ...]


def _derive(rounds: list[Round]) -> tuple[Waits, Waits]:
    """Walk the rounds once, remembering the last writer and the readers of each (rank, chunk)."""
    after: list[tuple[int, ...]] = []
    held_by: list[tuple[int, ...]] = []
    written: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], list[int]] = {}
    for part in rounds:
        start = len(after)
        sources = list(zip(part.src.tolist(), part.src_chunk.tolist(), strict=True))
        targets = list(zip(part.dst.tolist(), part.dst_chunk.tolist(), strict=True))
        reading: dict[tuple[int, int], list[int]] = {}
        for index, source in enumerate(sources, start):
            reading.setdefault(source, []).append(index)
        for index, (source, target) in enumerate(zip(sources, targets, strict=True), start):
            waits = {written[place] for place in (source, target) if place in written}
            waits.update(read.get(target, ()))
            after.append(tuple(sorted(waits)))
            held_by.append(tuple(other for other in reading.get(target, ()) if other != index))
        for source, readers in reading.items():
            read.setdefault(source, []).extend(readers)
        for index, target in enumerate(targets, start):
            written[target] = index
            read.pop(target, None)
    return tuple(after), tuple(held_by)
