"""Which send must wait for which: derived from the chunks that sends read and write.

A send reads one chunk at its source when it starts and writes one at its destination when it
lands. For each (rank, chunk) a read waits for the last write before it (read after write), and a
write for the last write and for the reads since (write after write, write after read). Sends of
one round read the state from before it, so they never wait for each other to land; but one that
overwrites what another of the same round reads may land only after that other has started.
Several sends of one round may add to the same chunk, in any order (a parent adds its children's);
two that write to it otherwise would race, which is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.collectives.schedule import Round, Schedule
from perfmodel.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Sends:
    """All sends of a schedule with what each must wait for.

    `after[i]`: sends of earlier rounds that must have landed before send i starts.
    `held_by[i]`: sends of the same round that must have started before send i lands.
    Arrays have shape (sends,).
    """

    src: IntArray
    dst: IntArray
    src_chunk: IntArray
    dst_chunk: IntArray
    nbytes: IntArray
    channel: IntArray
    reduce: np.ndarray[tuple[int], np.dtype[np.bool_]]
    round: IntArray
    after: tuple[tuple[int, ...], ...]
    held_by: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.src)


def unroll(schedule: Schedule) -> Sends:
    """Unroll a schedule and derive the dependencies of its sends."""
    rounds = list(schedule.rounds())
    columns = ("src", "dst", "src_chunk", "dst_chunk", "nbytes", "channel", "reduce")

    def joined(name: str) -> IntArray:
        parts = [getattr(part, name) for part in rounds]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    arrays = {name: joined(name) for name in columns}
    arrays["reduce"] = arrays["reduce"].astype(np.bool_)
    number = np.repeat(np.arange(len(rounds)), [len(part.src) for part in rounds])
    after, held_by = _derive_waits(rounds)
    return Sends(**arrays, round=number, after=after, held_by=held_by)  # type: ignore[arg-type]


Waits = tuple[tuple[int, ...], ...]
"""For each send, the numbers of those that it waits for."""
Place = tuple[int, int]
"""A rank and the number of one of its chunks."""


def _derive_waits(rounds: list[Round]) -> tuple[Waits, Waits]:
    """Go through the rounds once, with the last writers and readers of each (rank, chunk)."""
    after: list[tuple[int, ...]] = []
    held_by: list[tuple[int, ...]] = []
    written: dict[Place, list[int]] = {}
    read: dict[Place, list[int]] = {}
    for part in rounds:
        start = len(after)
        sources = list(zip(part.src.tolist(), part.src_chunk.tolist(), strict=True))
        targets = list(zip(part.dst.tolist(), part.dst_chunk.tolist(), strict=True))
        reading, writing = _group_by_place(sources, start), _group_by_place(targets, start)
        _refuse_races(part, writing, start)
        for index, (source, target) in enumerate(zip(sources, targets, strict=True), start):
            waits = {*written.get(source, ()), *written.get(target, ()), *read.get(target, ())}
            after.append(tuple(sorted(waits)))
            held_by.append(tuple(other for other in reading.get(target, ()) if other != index))
        for source, readers in reading.items():
            read.setdefault(source, []).extend(readers)
        for target, writers in writing.items():
            written[target] = writers
            read.pop(target, None)
    return tuple(after), tuple(held_by)


def _group_by_place(places: list[Place], start: int) -> dict[Place, list[int]]:
    """The sends, numbered from `start`, at each place."""
    sends: dict[Place, list[int]] = {}
    for index, place in enumerate(places, start):
        sends.setdefault(place, []).append(index)
    return sends


def _refuse_races(part: Round, writing: dict[Place, list[int]], start: int) -> None:
    if len(writing) == len(part.src):
        return
    for (rank, chunk), writers in writing.items():
        if len(writers) > 1 and not part.reduce[[w - start for w in writers]].all():
            raise ScheduleError(
                f"{len(writers)} sends of one round write chunk {chunk} of rank {rank}; "
                "allowed: one, or several that all add"
            )


@dataclass(frozen=True, slots=True)
class Messages:
    """What travels: all chunks that one rank sends to another in one round are one message.

    `members[i]`: the sends of message i. `after[i]`: messages of earlier rounds that must have
    landed before it starts. Arrays have shape (messages,).
    """

    src: IntArray
    dst: IntArray
    nbytes: IntArray
    channel: IntArray
    round: IntArray
    members: Waits
    after: Waits

    def __len__(self) -> int:
        return len(self.src)


def messages(sends: Sends) -> Messages:
    """Join the sends of a round that go over the same edge."""
    columns = (sends.round, sends.channel, sends.src, sends.dst)
    keys = zip(*(column.tolist() for column in columns), strict=True)
    number: dict[tuple[int, ...], int] = {}
    of_send = [number.setdefault(key, len(number)) for key in keys]
    members: list[list[int]] = [[] for _ in number]
    for send, message in enumerate(of_send):
        members[message].append(send)
    first = np.array([group[0] for group in members], dtype=np.int64)
    nbytes = np.zeros(len(members), dtype=np.int64)
    np.add.at(nbytes, of_send, sends.nbytes)
    return Messages(
        src=sends.src[first],
        dst=sends.dst[first],
        nbytes=nbytes,
        channel=sends.channel[first],
        round=sends.round[first],
        members=tuple(tuple(group) for group in members),
        after=tuple(
            tuple(sorted({of_send[wait] for send in group for wait in sends.after[send]}))
            for group in members
        ),
    )


def followers(waits: Waits) -> list[list[int]]:
    """For each send (or message), those that wait for it."""
    waiting: list[list[int]] = [[] for _ in waits]
    for index, others in enumerate(waits):
        for other in others:
            waiting[other].append(index)
    return waiting


def messages_in(schedule: Schedule) -> int:
    """Return how many messages travel: one per edge and repeat in which it works.

    Counted in the phases, so that it costs no more than the edges. It is what fidelity "message"
    simulates.
    """
    return sum(int(phase.active.sum()) for phase in schedule.phases)


def sends_in(schedule: Schedule, most: int | None = None) -> int:
    """Count the chunks that travel, sends for `verify`; stop once there are more than `most`."""
    count = 0
    for part in schedule.rounds():
        count += len(part.src)
        if most is not None and count > most:
            break
    return count
