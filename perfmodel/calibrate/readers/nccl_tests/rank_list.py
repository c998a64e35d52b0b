"""The list of ranks above a table of nccl-tests: how many, on which hosts and GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError

RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+(\d+)\s+)?on\s+(\S+)\s+device\s+(\d+)\s+"
    r"\[([^\]]*)\]\s*(.*)$"
)

WITHOUT_MPI = (
    "at least 2 ranks: was the test built without MPI (make MPI=1), so that each process ran alone?"
)


@dataclass(frozen=True, slots=True)
class ListedRank:
    """One line of the list."""

    rank: int
    group: str
    process: str
    host: str
    device: int
    bus: str
    model: str


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a list says; 0 ranks where there is none.

    `each`: ranks of every host, None where they differ. `one_process`: of several GPUs; None where
    no process is named.
    """

    count: int = 0
    nodes: int | None = None
    each: int | None = None
    devices: tuple[str, ...] = ()
    one_process: bool | None = None
    notes: tuple[str, ...] = ()
    certain: bool = True
    """Whether the list names all hosts."""


def listed_rank(line: str) -> ListedRank | None:
    """Read a line of the list."""
    match = RANK.search(line)
    if match is None:
        return None
    rank, group, process, host, device, bus, model = match.groups()
    model = re.sub(r"\s*(\||\\n).*$", "", model).strip()
    return ListedRank(int(rank), group or "0", process or "", host, int(device), bus, model)


def summary_of(lines: Sequence[ListedRank], line: int) -> Ranks:
    """Count ranks and hosts; a list that names only some of its ranks is completed by its pattern.

    Raises
    ------
    InputError
        Several groups at once, processes that ran alone, or a list with holes that show no pattern.
    """
    ranks = list(dict.fromkeys(lines))
    if not ranks:
        return Ranks()
    if len({rank.group for rank in ranks}) > 1:
        groups = len({rank.group for rank in ranks})
        problem = f"{groups} groups of ranks that run at once (NCCL_TESTS_SPLIT)"
        raise InputError(Fault("table", problem, "one group", line=line))
    again = [number for number, times in Counter(r.rank for r in ranks).items() if times > 1]
    if again == [0] and len({rank.rank for rank in ranks}) == 1:
        problem = f"{len(ranks)} lists of one rank each"
        raise InputError(Fault("ranks", problem, WITHOUT_MPI, line=line))
    if again:
        problem = f"rank {again[0]} twice, on different devices"
        raise InputError(Fault("ranks", problem, "each rank once", line=line))
    count = max(rank.rank for rank in ranks) + 1
    hosts = Counter(rank.host for rank in ranks)
    each = max(hosts.values()) if len(set(hosts.values())) == 1 else None
    nodes: int | None = len(hosts)
    if len(ranks) < count:
        nodes, each = _completed(ranks, count, len(hosts), line)
    processes = {(rank.host, rank.process) for rank in ranks if rank.process}
    return Ranks(
        count,
        nodes,
        each,
        devices=tuple(dict.fromkeys(rank.model for rank in ranks if rank.model)),
        one_process=len(processes) < len(ranks) if processes else None,
        notes=tuple(_notes(ranks, count)),
        certain=nodes == len(hosts),
    )


def _completed(
    ranks: Sequence[ListedRank], count: int, hosts: int, line: int
) -> tuple[int | None, int | None]:
    """Hosts and ranks of each, where lists leave out the middle: first and last of each host."""
    each = max(rank.device for rank in ranks) + 1
    regular = (
        count % each == 0
        and all(rank.rank % each == rank.device for rank in ranks)
        and len({(rank.rank // each, rank.host) for rank in ranks}) == hosts
    )
    if not regular:
        raise InputError(
            Fault(
                "ranks",
                f"{len(ranks)} of the ranks 0 to {count - 1}",
                "a list of all of them (cut off?)",
                line=line,
            )
        )
    return (count // each, each)


def _notes(ranks: Sequence[ListedRank], count: int) -> list[str]:
    notes = []
    if len(ranks) < count:
        notes.append(f"{len(ranks)} of {count} ranks are listed: the others are taken to be alike")
    places = Counter((rank.host, rank.bus, rank.device) for rank in ranks)
    (host, bus, _), most = places.most_common(1)[0]
    if most > 1:
        notes.append(
            f"{most} ranks share one GPU ({host}, {bus}): these are no times of {count} GPUs"
        )
    return notes
