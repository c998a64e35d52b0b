"""Pieces of gradients, and the order in which priority scheduling sends them.

ByteScheduler (SOSP 2019) and P3 (arXiv 1905.03960) cut tensors to pieces and send, of all that is
ready, the piece of the layer that the next forward runs first. With infinitely small pieces and one
link that order is the best there is: it is the rule of the largest delivery time for one machine
with release times (Jackson 1955; Horn 1974), where the delivery time of a piece is the rest of
forward from its layer on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Partition:
    """A piece of a gradient.

    `tensor`: that it is cut from; `part`: its number among the pieces of that.
    `rank`: pieces of lower rank go first, of those that are ready.
    `ready_s`: when its gradient is there; seconds.
    """

    tensor: int
    part: int
    nbytes: int
    rank: int
    ready_s: float


def cut_bytes(nbytes: int, most_bytes: float, item_bytes: int) -> tuple[int, ...]:
    """Cut a size to pieces of at most so many bytes, whole elements each.

    Examples
    --------
    >>> cut_bytes(10, 4, 2), cut_bytes(10, 1, 2), cut_bytes(8, 100, 4)
    ((4, 4, 2), (2, 2, 2, 2, 2), (8,))
    """
    most = max(item_bytes, int(most_bytes) // item_bytes * item_bytes)
    whole, rest = divmod(nbytes, most)
    return (most,) * whole + ((rest,) if rest else ())


def send_order(
    partitions: Sequence[Partition], time_s: Callable[[int], float], credit_bytes: float
) -> tuple[int, ...]:
    """Order in which one queue sends pieces, as indices.

    Parameters
    ----------
    partitions : sequence of Partition
    time_s : callable
        Time of a piece of so many bytes; seconds.
    credit_bytes : float
        Bytes in flight at most, but for a single piece.
    """
    by_time = sorted(range(len(partitions)), key=lambda index: partitions[index].ready_s)
    arrivals = deque(by_time)
    waiting: list[tuple[int, int]] = []
    in_flight: deque[tuple[float, int]] = deque()
    flying_bytes, now, free_s = 0, 0.0, 0.0
    order: list[int] = []
    while arrivals or waiting:
        while arrivals and partitions[arrivals[0]].ready_s <= now:
            index = arrivals.popleft()
            heapq.heappush(waiting, (partitions[index].rank, index))
        while in_flight and in_flight[0][0] <= now:
            flying_bytes -= in_flight.popleft()[1]
        if not waiting:
            now = partitions[arrivals[0]].ready_s
            continue
        nbytes = partitions[waiting[0][1]].nbytes
        if in_flight and flying_bytes + nbytes > credit_bytes:
            now = in_flight[0][0]
            continue
        order.append(heapq.heappop(waiting)[1])
        free_s = max(now, free_s) + time_s(nbytes)
        in_flight.append((free_s, nbytes))
        flying_bytes += nbytes
    return tuple(order)
