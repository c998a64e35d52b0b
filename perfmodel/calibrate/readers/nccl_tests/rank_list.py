"""The list of ranks above a table of nccl-tests: how many, on which hosts and GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.calibrate.readers.sweep_records import refuse

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
    groups = len({rank.group for rank in ranks})
    times = Counter(rank.rank for rank in ranks)
    again = next((number for number, listed in times.items() if listed > 1), None)
    refuse(
        line,
        (
            groups > 1,
            "table",
            f"{groups} groups of ranks that run at once (NCCL_TESTS_SPLIT)",
            "one group",
        ),
        (
            again == 0 and len(times) == 1,
            "ranks",
            f"{len(ranks)} lists of one rank each",
            WITHOUT_MPI,
        ),
        (
            again is not None,
            "ranks",
            f"rank {again} twice, on different devices",
            "each rank once",
        ),
    )
    count, hosts = max(times) + 1, Counter(rank.host for rank in ranks)
    each = max(hosts.values()) if len(set(hosts.values())) == 1 else None
    nodes: int | None = len(hosts)
    if len(ranks) < count:
        each = max(rank.device for rank in ranks) + 1
        nodes = count // each
        _check_pattern(ranks, count, each, line)
    processes = {(rank.host, rank.process) for rank in ranks if rank.process}
    return Ranks(
        count,
        nodes,
        each,
        devices=tuple(dict.fromkeys(rank.model for rank in ranks if rank.model)),
        one_process=len(processes) < len(ranks) if processes else None,
        notes=_notes(ranks, count),
        certain=nodes == len(hosts),
    )


def _check_pattern(ranks: Sequence[ListedRank], count: int, each: int, line: int) -> None:
    """Refuse a list that leaves out others than the middle: first and last of each host."""
    pairs = {(rank.rank // each, rank.host) for rank in ranks}
    regular = (
        count % each == 0
        and all(rank.rank % each == rank.device for rank in ranks)
        and len(pairs) == len({host for _, host in pairs})
    )
    problem = f"{len(ranks)} of the ranks 0 to {count - 1}"
    refuse(line, (not regular, "ranks", problem, "a list of all of them (cut off?)"))


def _notes(ranks: Sequence[ListedRank], count: int) -> tuple[str, ...]:
    places = Counter((rank.host, rank.bus, rank.device) for rank in ranks)
    (host, bus, _), most = places.most_common(1)[0]
    listed = f"{len(ranks)} of {count} ranks are listed: the others are taken to be alike"
    shared = f"{most} ranks share one GPU ({host}, {bus}): these are no times of {count} GPUs"
    return (listed,) * (len(ranks) < count) + (shared,) * (most > 1)
