"""Recursive doubling and halving: partners at distances 1, 2, 4 ... meet; any number of ranks.

Where N is no power of two, N - M ranks first fold their data into a neighbour's, M (the largest
power of two) do the work, and the neighbours hand the result back.

Sources: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005; Rabenseifner, "Optimization of collective reduction operations",
ICCS 2004; Bruck et al., IEEE TPDS 8(11), 1997 (all-gather).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.collectives.patterns import Pattern, concatenate, exchange
from perfmodel.collectives.schedule import Schedule, check_ranks, split_elements
from perfmodel.errors import check_schedule


@dataclass(frozen=True, slots=True)
class _Team:
    """Who works: `members` (a power of two of them), and `partners`, who fold into `folded`.

    Arrays of shape (members,), (extra,), (extra,).
    """

    members: IntArray
    folded: IntArray
    partners: IntArray

    @classmethod
    def of(cls, ranks: int) -> _Team:
        """Ranks 2i fold into 2i + 1 until a power of two is left."""
        size = 1 << (ranks.bit_length() - 1)
        extra = np.arange(ranks - size)
        members = np.concatenate([2 * extra + 1, np.arange(2 * len(extra), ranks)])
        return cls(members, 2 * extra + 1, 2 * extra)

    def nearest_first(self) -> IntArray:
        """Members renumbered so that halving begins between neighbours: bits reversed."""
        number = np.arange(len(self.members))
        turned = np.zeros_like(number)
        for _ in _masks(self.members):
            turned, number = (turned << 1) | (number & 1), number >> 1
        return self.members[turned]


def all_reduce(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks by recursive doubling: partners swap and add whole buffers.

    Steps: log2 M, and 2 more if N is no power of two. Bytes sent by the busiest rank:
    S log2 M, and S more if N is no power of two. Latency term: steps times alpha. Right for
    small buffers: the fewest steps. Source: Thakur et al. (see the module).
    """
    team, sizes = _Team.of(check_ranks(ranks)), split_elements(nbytes, 1, itemsize)
    members, zeros = team.members, np.zeros(len(team.members), dtype=np.int64)
    partners = [members[np.arange(len(members)) ^ mask] for mask in _masks(members)]
    swaps = [exchange("swap", members, p, zeros, 1, sizes, reduces=True) for p in partners]
    patterns = [_fold(team, sizes), *swaps, _fold(team, sizes, back=True)]
    return concatenate(patterns, "all_reduce", "recursive_doubling", ranks, nbytes, itemsize, sizes)


def halving_doubling(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks: reduce-scatter by halving, then all-gather by doubling.

    Neighbours swap the largest parts. Steps: 2 log2 M, and 2 more if N is no power of two.
    Bytes sent by the busiest rank: 2(M-1)/M S, and S more if N is no power of two. Latency term:
    steps times alpha. Right for middle sizes; for large ones where N is a power of two: a ring's
    bytes in few steps, if the network carries any pairs at full rate. Source: Thakur et al.
    """
    team = _Team.of(check_ranks(ranks))
    sizes = split_elements(nbytes, len(team.members), itemsize)
    patterns = [_fold(team, sizes), *_halve_and_double(team, sizes), _fold(team, sizes, back=True)]
    return concatenate(patterns, "all_reduce", "halving_doubling", ranks, nbytes, itemsize, sizes)


def rabenseifner(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Sum a buffer as `halving_doubling` does, but let both partners of a fold add one half.

    Steps: 2 log2 M, and 3 more if N is no power of two (halves swapped, sum of one half, result).
    Bytes sent by the busiest rank: 2(M-1)/M S, and 3/2 S more if N is no power of two; the
    largest sum that a rank makes while folding is S/2 and not S. Latency term: steps times
    alpha. Right where adding is dear. Source: Rabenseifner (see the module).
    """
    team = _Team.of(check_ranks(ranks))
    sizes = split_elements(nbytes, len(team.members), itemsize)
    half, extra = len(sizes) // 2, len(team.partners)
    lower, upper = np.zeros(extra, dtype=np.int64), np.full(extra, half)
    senders = np.concatenate([team.partners, team.folded])
    receivers = np.concatenate([team.folded, team.partners])
    begin = np.concatenate([lower, upper])
    folds = [
        exchange("swap halves", senders, receivers, begin, half, sizes, reduces=True),
        exchange("fold", team.partners, team.folded, upper, half, sizes, reduces=False),
    ]
    patterns = [*folds, *_halve_and_double(team, sizes), _fold(team, sizes, back=True)]
    return concatenate(patterns, "all_reduce", "rabenseifner", ranks, nbytes, itemsize, sizes)


def _halve_and_double(team: _Team, sizes: IntArray) -> list[Pattern]:
    members, starts = team.nearest_first(), np.arange(len(team.members) + 1)
    return [*_halve(members, starts, sizes), *_double(members, starts, sizes)]


def reduce_scatter(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Sum a buffer over all ranks and leave each rank its own part, by recursive halving.

    Steps: log2 M, and 2 more if N is no power of two. Bytes sent by the busiest rank:
    (N-1)/N S where N is a power of two, else S (who folds). Latency term: steps times alpha.
    Right for small and middle sizes. Source: Thakur et al. (see the module).
    """
    team, sizes = _Team.of(check_ranks(ranks)), split_elements(nbytes, ranks, itemsize)
    # The parts of a member and of the partner that folded into it lie side by side.
    number, extra = np.arange(len(team.members) + 1), len(team.partners)
    starts = number + np.minimum(number, extra)
    give = exchange("unfold", team.folded, team.partners, team.partners, 1, sizes, reduces=False)
    patterns = [_fold(team, sizes), *_halve(team.members, starts, sizes), give]
    return concatenate(
        patterns,
        "reduce_scatter",
        "recursive_halving",
        ranks,
        nbytes,
        itemsize,
        sizes,
        owner=np.arange(ranks),
    )


def all_gather(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Give every rank the parts of all, by recursive doubling; N a power of two.

    Steps: log2 N. Bytes sent per rank: (N-1)/N S. Latency term: log2 N alpha. Right for small
    and middle sizes. Source: Thakur et al. (see the module).

    Raises `ScheduleError`: N is no power of two; `bruck_all_gather` takes any.
    """
    check_schedule(
        (
            check_ranks(ranks) & (ranks - 1),
            (
                f"recursive doubling all_gather on {ranks} ranks; allowed: a power of two "
                "(algorithm 'bruck' takes any number)"
            ),
        )
    )
    sizes, own = split_elements(nbytes, ranks, itemsize), np.arange(ranks)
    patterns = _double(own, np.arange(ranks + 1), sizes)
    return concatenate(
        patterns, "all_gather", "recursive_doubling", ranks, nbytes, itemsize, sizes, owner=own
    )


def bruck_all_gather(ranks: int, nbytes: int, *, itemsize: int = 4) -> Schedule:
    """Give every rank the parts of all: in step k, all that it has to the rank 2^k below.

    Steps: ceil(log2 N). Bytes sent per rank: (N-1)/N S. Latency term: ceil(log2 N) alpha. Right
    for small and middle sizes and any N. Source: Bruck et al. (see the module).
    """
    sizes, own = split_elements(nbytes, check_ranks(ranks), itemsize), np.arange(ranks)
    patterns = [
        exchange("gather", own, (own - d) % ranks, own, min(d, ranks - d), sizes, reduces=False)
        for d in (1 << k for k in range((ranks - 1).bit_length()))
    ]
    return concatenate(patterns, "all_gather", "bruck", ranks, nbytes, itemsize, sizes, owner=own)


def _fold(team: _Team, sizes: IntArray, *, back: bool = False) -> Pattern:
    """The partners add their whole buffers to their neighbours', or get the result `back`."""
    name, zeros = "unfold" if back else "fold", np.zeros_like(team.partners)
    src, dst = (team.partners, team.folded)[:: -1 if back else 1]
    return exchange(name, src, dst, zeros, len(sizes), sizes, reduces=not back)


def _halve(members: IntArray, starts: IntArray, sizes: IntArray) -> list[Pattern]:
    """Reduce-scatter: member x ends with chunks starts[x] ... starts[x + 1] - 1.

    In each step x gives the half that it will not keep to the member that will.
    """
    return [
        _swap("halve", members, mask, (np.arange(len(members)) ^ mask) & -mask, starts, sizes)
        for mask in _masks(members)[::-1]
    ]


def _double(members: IntArray, starts: IntArray, sizes: IntArray) -> list[Pattern]:
    """All-gather: `_halve` backwards; x gives all that it has."""
    return [
        _swap("double", members, mask, np.arange(len(members)) & -mask, starts, sizes)
        for mask in _masks(members)
    ]


def _masks(members: IntArray) -> list[int]:
    return [1 << k for k in range(len(members).bit_length() - 1)]


def _swap(
    name: str, members: IntArray, mask: int, block: IntArray, starts: IntArray, sizes: IntArray
) -> Pattern:
    """Member x gives blocks block[x] ... block[x] + mask - 1 to member x ^ mask."""
    partner = members[np.arange(len(members)) ^ mask]
    count = starts[block + mask] - starts[block]
    return exchange(name, members, partner, starts[block], count, sizes, reduces=name == "halve")
