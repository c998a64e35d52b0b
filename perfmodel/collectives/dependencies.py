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

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.arrays import IntArray, each_of
from perfmodel.collectives.schedule import Schedule
from perfmodel.errors import ScheduleError


@dataclass(frozen=True)
class Messages:
    """What travels: all chunks that one rank sends to another in one round are one message.

    Message ``waits[k]`` may start only when message ``awaited[k]``, of an earlier round, has
    landed; both of shape (dependencies,), each pair once, ordered by `waits`. The other arrays
    have shape (messages,).
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

    @cached_property
    def after(self) -> list[list[int]]:
        """For each message, those that must have landed before it starts."""
        return grouped(self.waits, self.awaited, len(self))


@dataclass(frozen=True)
class Sends(Messages):
    """All sends of a schedule, of a chunk each, with what each must wait for (see `Messages`)."""

    src_chunk: IntArray
    dst_chunk: IntArray
    reduce: np.ndarray[tuple[int], np.dtype[np.bool_]]

    def holds(self) -> tuple[IntArray, IntArray]:
        """Pairs of sends of a round: the first lands only when the second has started."""
        source, target = _places(self)
        span = 2 + int(self.round.max(initial=0))
        reads, key = _Ordered.of(source * span + self.round), target * span + self.round
        low, high = np.searchsorted(reads.keys, key), np.searchsorted(reads.keys, key, side="right")
        writer, reader = reads.expand(low, high)
        return writer[writer != reader], reader[writer != reader]


def grouped(keys: IntArray, values: IntArray, count: int) -> list[list[int]]:
    """Return the values of each key from 0 to `count` - 1, in order."""
    groups: list[list[int]] = [[] for _ in range(count)]
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        groups[key].append(value)
    return groups


def unroll(schedule: Schedule) -> Sends:
    """Unroll a schedule and derive the dependencies of its sends.

    Raises `ScheduleError`: two sends of a round that write the same chunk and do not both add.
    """
    rounds = list(schedule.rounds())
    parts = {
        name: [getattr(part, name) for part in rounds]
        for name in ("src", "dst", "src_chunk", "dst_chunk", "nbytes", "channel", "reduce")
    }
    columns = {
        name: np.concatenate([*column, np.zeros(0, np.int64)]).astype(np.int64, copy=False)
        for name, column in parts.items()
    }
    sizes = [len(part.src) for part in rounds]
    nothing = np.zeros(0, np.int64)
    sends = Sends(
        **columns | {"reduce": columns["reduce"].astype(np.bool_)},  # type: ignore[arg-type]
        round=np.repeat(np.arange(len(rounds)), sizes),
        waits=nothing,
        awaited=nothing,
    )
    source, target = _places(sends)
    pairs = _waits_of_single(source, target, sizes)
    if pairs is None:
        _refuse_races(sends, target)
        pairs = _pairs_once(*_waits(source, target, sends.round), len(sends))
    return replace(sends, waits=pairs[0], awaited=pairs[1])


def messages(sends: Sends) -> Messages:
    """Join the sends of a round that go over the same edge."""
    columns = sends.src, sends.dst, sends.nbytes, sends.channel, sends.round
    if _is_message_each(sends):
        return Messages(*columns, sends.waits, sends.awaited)
    first, of_send = _number_columns(np.stack([sends.round, sends.channel, sends.src, sends.dst]))
    src, dst, nbytes, channel, number = columns
    nbytes = np.bincount(of_send, weights=nbytes).astype(np.int64)
    return Messages(
        src[first],
        dst[first],
        nbytes,
        channel[first],
        number[first],
        *_pairs_once(of_send[sends.waits], of_send[sends.awaited], len(first)),
    )


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


def _places(sends: Sends) -> tuple[IntArray, IntArray]:
    """Return the places (of chunks on ranks) that each send reads and writes."""
    chunks = _chunks(sends)
    return sends.src * chunks + sends.src_chunk, sends.dst * chunks + sends.dst_chunk


def _chunks(sends: Sends) -> int:
    """Return how many chunks a rank's buffer has: one more than the largest number in the sends."""
    return 1 + int(max(sends.src_chunk.max(initial=0), sends.dst_chunk.max(initial=0)))


def _is_message_each(sends: Sends) -> bool:
    """Whether no two sends of a round go over the same edge, and so no two are one message."""
    ends = np.flatnonzero(np.diff(sends.round)) + 1
    before: tuple[IntArray, ...] = ()
    columns = (np.split(column, ends) for column in (sends.channel, sends.src, sends.dst))
    for edges in zip(*columns, strict=True):
        if before and all(map(np.array_equal, before, edges)):
            continue
        if len(_number_columns(np.stack(edges))[0]) < len(edges[0]):
            return False
        before = edges
    return True


def _pairs_once(waits: IntArray, awaited: IntArray, sends: int) -> tuple[IntArray, IntArray]:
    """Return the pairs of sends in order, each once."""
    pairs = np.sort(waits * max(1, sends) + awaited)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]  # np.unique hashes, which takes four times longer
    return pairs // max(1, sends), pairs % max(1, sends)


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


def _refuse_races(sends: Sends, target: IntArray) -> None:
    """Raise `ScheduleError` where several sends of a round write to a place, and not all add."""
    place = target * (1 + int(sends.round.max(initial=0))) + sends.round
    order, adds = np.argsort(place, kind="stable"), sends.reduce
    again = np.flatnonzero(np.diff(place[order]) == 0)
    races = again[~(adds[order[again]] & adds[order[again + 1]])]
    if len(races):
        writers = np.flatnonzero(place == place[order[races].min()])
        rank, chunk = divmod(int(target[writers[0]]), _chunks(sends))
        raise ScheduleError(
            f"{len(writers)} sends of one round write chunk {chunk} of rank {rank}; "
            "allowed: one, or several that all add"
        )


def _waits(source: IntArray, target: IntArray, number: IntArray) -> tuple[IntArray, IntArray]:
    """Return the pairs of sends: the first waits for the second, which is of an earlier round.

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
    """Return the pairs of a send and what it waits for, in order, each once.

    `awaited`: shape (3, sends); -1: nothing. Changed in place.
    """
    for low, high in ((0, 1), (1, 2), (0, 1)):
        least = np.minimum(awaited[low], awaited[high])
        np.maximum(awaited[low], awaited[high], out=awaited[high])
        awaited[low] = least
    counts = awaited >= 0
    counts[1:] &= awaited[1:] != awaited[:-1]
    return np.repeat(np.arange(awaited.shape[1]), counts.sum(axis=0)), awaited.T[counts.T]


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
        """Return where the accesses to a place in its last round before a round begin and end."""
        last = self.last_round(place, number, span)
        key = place * span + last
        low = np.searchsorted(self.keys, key, side="left")
        return low, np.where(last < 0, low, np.searchsorted(self.keys, key, side="right"))

    def expand(self, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
        """Return the pairs of each query and the sends from its low to its high end."""
        query, offset = each_of(np.maximum(0, high - low))
        return query, self.sends[low[query] + offset]
