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

from collections.abc import Mapping, Sequence
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


Waits = tuple[tuple[int, ...], ...]
"""For each send, the numbers of those that it waits for."""


def unroll(schedule: Schedule) -> Sends:
    """Unroll a schedule and derive the dependencies of its sends.

    Raises `ScheduleError`: two sends of a round that write the same chunk and do not both add.
    """
    rounds = list(schedule.rounds())
    names = ("src", "dst", "src_chunk", "dst_chunk", "nbytes", "channel", "reduce")
    columns = {name: _column(rounds, name) for name in names}
    number, source, target = _places(columns, rounds)
    _refuse_races(target, number, columns["reduce"], _chunks(rounds))
    span = 2 + int(number.max(initial=0))
    reads = _Ordered.of(source * span + number)
    key = target * span + number
    low, high = np.searchsorted(reads.keys, key), np.searchsorted(reads.keys, key, side="right")
    writer, reader = reads.expand(low, high)
    return Sends(
        **columns | {"reduce": columns["reduce"].astype(np.bool_)},  # type: ignore[arg-type]
        round=number,
        after=_listed(*_waits(source, target, number), len(number)),
        held_by=_listed(writer[writer != reader], reader[writer != reader], len(number)),
    )


def _listed(waits: IntArray, awaited: IntArray, sends: int) -> Waits:
    """For each send, those that it waits for, ascending and each once."""
    others: list[set[int]] = [set() for _ in range(sends)]
    for send, other in zip(waits.tolist(), awaited.tolist(), strict=True):
        others[send].add(other)
    return tuple(tuple(sorted(each)) for each in others)


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


@dataclass(frozen=True, slots=True)
class FlatMessages:
    """Messages (see `dependencies.Messages`): shape (messages,), but for the last two.

    Message ``waits[k]`` may start only when message ``awaited[k]`` has landed; both of shape
    (dependencies,), each pair once, ordered by `waits`.
    """

    src: IntArray
    dst: IntArray
    nbytes: IntArray
    channel: IntArray
    round: IntArray
    waits: IntArray
    awaited: IntArray

    def __len__(self) -> int:
        return len(self.src)


def flat_messages(schedule: Schedule) -> FlatMessages:
    """Unroll a schedule, derive what its sends wait for and join those over the same edge.

    Raises `ScheduleError`: two sends of a round that write the same chunk and do not both add.
    """
    rounds = list(schedule.rounds())
    columns = {name: _column(rounds, name) for name in ("src", "dst", "nbytes", "channel")}
    chunks = {name: _column(rounds, name) for name in ("src_chunk", "dst_chunk")}
    number, source, target = _places(columns | chunks, rounds)
    single = _waits_of_single(source, target, [len(part.src) for part in rounds])
    if single is not None and _is_message_each(rounds):
        return FlatMessages(**columns, round=number, waits=single[0], awaited=single[1])
    if single is None:
        _refuse_races(target, number, _column(rounds, "reduce"), _chunks(rounds))
    waits, awaited = _waits(source, target, number) if single is None else single
    keys = np.stack([number, columns["channel"], columns["src"], columns["dst"]])
    first, of_send = _number_columns(keys)
    nbytes = np.bincount(of_send, weights=columns["nbytes"], minlength=len(first))
    pairs = np.sort(of_send[waits] * max(1, len(first)) + of_send[awaited])
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]  # np.unique hashes, which takes four times longer
    return FlatMessages(
        src=columns["src"][first],
        dst=columns["dst"][first],
        nbytes=nbytes.astype(np.int64),
        channel=columns["channel"][first],
        round=number[first],
        waits=pairs // max(1, len(first)),
        awaited=pairs % max(1, len(first)),
    )


def _column(rounds: Sequence[Round], name: str) -> IntArray:
    """One field of all sends."""
    parts = [getattr(part, name) for part in rounds]
    return np.concatenate([*parts, np.zeros(0, np.int64)]).astype(np.int64, copy=False)


def _chunks(rounds: Sequence[Round]) -> int:
    """How many chunks a rank has, as far as rounds name them."""
    numbers = (ids for part in rounds for ids in (part.src_chunk, part.dst_chunk))
    return 1 + max((int(ids.max(initial=0)) for ids in numbers), default=0)


def _places(
    columns: Mapping[str, IntArray], rounds: Sequence[Round]
) -> tuple[IntArray, IntArray, IntArray]:
    """Number of the round of each send, and the places (of chunks on ranks) of its two ends."""
    chunks = _chunks(rounds)
    number = np.repeat(np.arange(len(rounds)), [len(part.src) for part in rounds])
    source = columns["src"] * chunks + columns["src_chunk"]
    return number, source, columns["dst"] * chunks + columns["dst_chunk"]


def _is_message_each(rounds: Sequence[Round]) -> bool:
    """Whether no two sends of a round go over the same edge, and so no two are one message."""
    before: list[IntArray] = []
    for part in rounds:
        columns = [part.channel, part.src, part.dst]
        if before and all(map(np.array_equal, before, columns)):
            continue
        if len(part.src) and len(_number_columns(np.stack(columns))[0]) < len(part.src):
            return False
        before = columns
    return True


def _number_columns(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Number columns that are alike by their first occurrence.

    Returns the place of each first occurrence, and the number of each column.
    """
    joint = np.zeros(keys.shape[1], np.int64)
    for row in keys:
        joint = joint * (1 + int(row.max(initial=0))) + row
    _, first, inverse = np.unique(joint, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse]


def _refuse_races(target: IntArray, number: IntArray, adds: IntArray, chunks: int) -> None:
    """Raise `ScheduleError` where several sends of a round write to a place, and not all add."""
    place = target * (1 + int(number.max(initial=0))) + number
    order = np.argsort(place, kind="stable")
    again = np.flatnonzero(np.diff(place[order]) == 0)
    races = again[(adds[order[again]] == 0) | (adds[order[again + 1]] == 0)]
    if len(races):
        writers = np.flatnonzero(place == place[order[races].min()])
        rank, chunk = divmod(int(target[writers[0]]), chunks)
        raise ScheduleError(
            f"{len(writers)} sends of one round write chunk {chunk} of rank {rank}; "
            "allowed: one, or several that all add"
        )


def _waits(source: IntArray, target: IntArray, number: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs of sends: the first waits for the second, which is of an earlier round.

    A read waits for the last write of its chunk, a write for that and for the reads since.
    """
    span = 2 + int(number.max(initial=0))
    writes = _Ordered.of(target * span + number)
    reads = _Ordered.of(source * span + number)
    pairs = []
    for place, askers in ((source, reads), (target, writes)):  # in order, which is quicker to find
        low, high = writes.before(place[askers.sends], number[askers.sends], span)
        query, awaited = writes.expand(low, high)
        pairs.append((askers.sends[query], awaited))
    place, at = target[writes.sends], number[writes.sends]
    written = writes.last_round(place, at, span)
    low = np.searchsorted(reads.keys, place * span + written, side="right")
    low = np.where(written < 0, np.searchsorted(reads.keys, place * span, side="left"), low)
    high = np.searchsorted(reads.keys, place * span + at, side="left")
    query, awaited = reads.expand(low, high)
    pairs.append((writes.sends[query], awaited))
    waits, awaited = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return waits, awaited


def _waits_of_single(
    source: IntArray, target: IntArray, sizes: list[int]
) -> tuple[IntArray, IntArray] | None:
    """As `_waits`, round by round, which takes a tenth of the time; each pair once, in order.

    None where several sends of a round write to a place, or several read there before it is written
    again, as where trees branch. `sizes`: sends of each round.
    """
    places = 1 + int(max(source.max(initial=-1), target.max(initial=-1)))
    written, read = np.full((2, places), -1)
    awaited = np.empty((3, len(source)), np.int64)
    end = 0
    for size in sizes:
        begin, end = end, end + size
        sends, sources, targets = np.arange(begin, end), source[begin:end], target[begin:end]
        again = read[sources] >= 0
        awaited[0, begin:end], awaited[1, begin:end] = written[sources], written[targets]
        awaited[2, begin:end] = read[targets]
        read[sources] = sends
        if again.any() or (read[sources] != sends).any():
            return None
        read[targets] = -1
        written[targets] = sends
        if (written[targets] != sends).any():
            return None
    return _each_once(awaited)


def _each_once(awaited: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs of a send and what it waits for, in order, each once.

    `awaited`: shape (3, sends); -1: nothing. Changed in place.
    """
    for low, high in ((0, 1), (1, 2), (0, 1)):
        least = np.minimum(awaited[low], awaited[high])
        np.maximum(awaited[low], awaited[high], out=awaited[high])
        awaited[low] = least
    counts = awaited >= 0
    counts[1:] &= awaited[1:] != awaited[:-1]
    waits = np.repeat(np.arange(awaited.shape[1]), counts.sum(axis=0))
    return waits, awaited.T[counts.T]


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Reads or writes in the order of place and round: `keys`, and the `sends` that do them."""

    keys: IntArray
    sends: IntArray

    @classmethod
    def of(cls, keys: IntArray) -> _Ordered:
        sends = np.argsort(keys, kind="stable")
        return cls(keys[sends], sends)

    def last_round(self, place: IntArray, number: IntArray, span: int) -> IntArray:
        """Round of the last access to a place before a round; -1 if there is none."""
        at = np.searchsorted(self.keys, place * span + number, side="left") - 1
        key = self.keys[np.maximum(at, 0)] if len(self.keys) else np.zeros_like(place)
        return np.where((at >= 0) & (key >= place * span), key - place * span, -1)

    def before(self, place: IntArray, number: IntArray, span: int) -> tuple[IntArray, IntArray]:
        """Where the accesses to a place in its last round before a round begin and end."""
        last = self.last_round(place, number, span)
        key = place * span + last
        low = np.searchsorted(self.keys, key, side="left")
        return low, np.where(last < 0, low, np.searchsorted(self.keys, key, side="right"))

    def expand(self, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
        """Pairs of each query and the sends from its low to its high end."""
        count = np.maximum(0, high - low)
        query = np.repeat(np.arange(len(count)), count)
        offset = np.arange(len(query)) - np.repeat(np.cumsum(count) - count, count)
        return query, self.sends[low[query] + offset]
