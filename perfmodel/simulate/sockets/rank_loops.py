"""A collective as the loops of its ranks: what each waits for, and what it asks and sends then.

Gloo runs a collective in one thread of each rank. The thread goes through the rounds in which its
rank takes part: for each it tells the senders that it is ready for their messages, hands over its
own, which go when their receivers are ready, and goes on. Before it begins a round it waits until
everything of the round so many before has come and gone (Gloo's segmented ring: two before), and
before a new phase that asks for it until everything has.

Source: Gloo, ``gloo/allreduce.cc`` and ``gloo/transport/tcp/pair.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from perfmodel.collectives.schedule import Round, Schedule


@dataclass(slots=True)
class Turn:
    """One round of one rank.

    Parameters
    ----------
    number : int
        Of the round.
    needs : int
        How many of the rank's turns, from the first on, must be over before it begins.
    sends : list of (int, float)
        To whom, and bytes.
    receives : list of int
        From whom.
    """

    number: int
    needs: int
    sends: list[tuple[int, float]] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)


def turns_of(schedule: Schedule, credits: int) -> tuple[tuple[Turn, ...], ...]:
    """Return the turns of each rank.

    Parameters
    ----------
    schedule : Schedule
    credits : int
        Turns under way at once in phases that allow it (whose `lag` is above one).
    """
    ranks = schedule.ranks + schedule.switches
    found: list[list[Turn]] = [[] for _ in range(ranks)]
    for number, (part, ahead, drained) in enumerate(_rounds(schedule, credits)):
        mine: dict[int, Turn] = {}
        for src, dst, nbytes in _messages(part):
            for rank in (src, dst):
                if rank not in mine:
                    before = len(found[rank])
                    mine[rank] = Turn(number, before if drained else max(0, before + 1 - ahead))
                    found[rank].append(mine[rank])
            mine[src].sends.append((dst, nbytes))
            mine[dst].receives.append(src)
    return tuple(tuple(turns) for turns in found)


def _rounds(schedule: Schedule, credits: int) -> Iterator[tuple[Round, int, bool]]:
    """Rounds, how many may be under way, and whether everything before must be over."""
    rounds = schedule.rounds()
    for phase in schedule.phases:
        for repeat in range(phase.repeat):
            part = next(rounds, None)
            if part is None:
                return
            ahead = credits if phase.lag > 1 else 1
            yield part, ahead, phase.drained and repeat == 0


def _messages(part: Round) -> Iterator[tuple[int, int, float]]:
    """Sender, receiver and bytes of each message: what goes one way in a round goes together."""
    total: dict[tuple[int, int], float] = {}
    for src, dst, nbytes in zip(
        part.src.tolist(), part.dst.tolist(), np.asarray(part.nbytes, float).tolist(), strict=True
    ):
        total[src, dst] = total.get((src, dst), 0.0) + nbytes
    return ((src, dst, nbytes) for (src, dst), nbytes in total.items())


Word = Callable[[int, int, int], None]
Data = Callable[[int, int, int, float], None]


@dataclass(slots=True)
class Loops:
    """The loops of one collective on their way.

    Parameters
    ----------
    turns : tuple of tuple of Turn
        By rank.
    say_ready, send : callable
        Put a ready message (receiver, sender, round) or data (sender, receiver, round, bytes) on
        the way; `is_ready` and `landed` are to be called when they are there.
    """

    turns: tuple[tuple[Turn, ...], ...]
    say_ready: Word
    send: Data
    _begun: list[int] = field(init=False)
    _over: list[int] = field(init=False)
    _left: list[list[int]] = field(init=False)
    _turn_of: list[dict[int, int]] = field(init=False)
    _met: dict[tuple[int, int, int], float] = field(default_factory=dict)
    _running: int = field(init=False)

    def __post_init__(self) -> None:
        self._begun = [0] * len(self.turns)
        self._over = [0] * len(self.turns)
        self._left = [[len(t.sends) + len(t.receives) for t in mine] for mine in self.turns]
        self._turn_of = [{t.number: i for i, t in enumerate(mine)} for mine in self.turns]
        self._running = sum(bool(mine) for mine in self.turns)

    @property
    def ended(self) -> bool:
        """Whether all ranks are through."""
        return self._running == 0

    def begin(self, rank: int) -> None:
        """Start a rank."""
        self._go_on(rank)

    def is_ready(self, sender: int, receiver: int, number: int) -> None:
        """A ready message has come: what its sender has handed over may go."""
        self._meet(sender, receiver, number, -1.0)

    def landed(self, receiver: int, number: int) -> None:
        """Data have come."""
        self._done(receiver, number)

    def _meet(self, sender: int, receiver: int, number: int, nbytes: float) -> None:
        """Send as soon as both sides are there: bytes from the sender, -1 from the receiver."""
        other = self._met.pop((sender, receiver, number), None)
        if other is None:
            self._met[sender, receiver, number] = nbytes
            return
        self.send(sender, receiver, number, max(nbytes, other))
        self._done(sender, number)

    def _done(self, rank: int, number: int) -> None:
        """One more message of a turn has come or gone."""
        left = self._left[rank]
        left[self._turn_of[rank][number]] -= 1
        over = self._over[rank]
        while over < len(left) and left[over] == 0 and over < self._begun[rank]:
            over += 1
        if over > self._over[rank]:
            self._over[rank] = over
            if over == len(left):
                self._running -= 1
            else:
                self._go_on(rank)

    def _go_on(self, rank: int) -> None:
        """Begin the turns that wait for nothing any more."""
        mine = self.turns[rank]
        while self._begun[rank] < len(mine):
            turn = mine[self._begun[rank]]
            if turn.needs > self._over[rank]:
                return
            self._begun[rank] += 1
            for src in turn.receives:
                self.say_ready(rank, src, turn.number)
            for dst, nbytes in turn.sends:
                self._meet(rank, dst, turn.number, nbytes)
