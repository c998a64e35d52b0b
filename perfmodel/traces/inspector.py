"""NCCL's Inspector (JSON lines of its profiler plugin): collectives of a job in production.

Formats v4.0 to v4.3: README.md and inspector.cc in
https://github.com/NVIDIA/nccl/tree/master/ext-profiler/inspector. A collective has one number
(``coll_sn``) on all ranks of its communicator; the last rank sees the transfer alone. Since v4.3
the header stands once before the records of a dump. Sizes are those of one rank's part where ranks
scatter or gather; here, as elsewhere, they are of all ranks together.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.collectives.catalog import bus_factor
from perfmodel.errors import Fault, InputError, raise_faults, refuse_if
from perfmodel.files.read import GZIP_ERRORS, gzip_problem, unpacked
from perfmodel.memo import grouped
from perfmodel.traces.kineto.collective_calls import operation_of
from perfmodel.traces.kineto.event_stream import first_bytes

LONGEST_LINE = 1 << 20
MOST_RECORDS = 20_000_000
PARTED = frozenset({"all_gather", "reduce_scatter"})
"""Collectives whose size the Inspector states of one rank: it multiplies by ranks for bandwidths
(65,536 bytes on 32 ranks in 110 us are 19.07 GB/s in exporter/example/README.md)."""

_KINDS = b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"'
_ALLOWED = "lines of NCCL's Inspector: an object each, with header and coll_perf"


@dataclass(frozen=True, slots=True)
class InspectedSize:
    """Collectives of one operation and size among as many ranks; times in seconds.

    `transfer_s`: median of the shortest time among the ranks. `waiting_s`: median of what the
    slowest record takes longer; None where each was recorded by one rank only.
    `busbw_Bps`: by the transfer.
    """

    op: str
    nbytes: int
    ranks: int
    count: int
    transfer_s: float
    waiting_s: float | None
    busbw_Bps: float


def is_inspector(path: Path) -> bool:
    """Tell whether the first line of a file is one of the Inspector's."""
    line = first_bytes(path, LONGEST_LINE).partition(b"\n")[0]
    return any(kind in line for kind in _KINDS)


def read_inspector(paths: Sequence[Path]) -> tuple[InspectedSize, ...]:
    """Sum up the files of all ranks, by operation and size.

    Raises `InputError`: lines that are no records; names file and line.
    """
    times: dict[tuple[str, int, int, str, int], list[float]] = defaultdict(list)
    for path in paths:
        header: Any = None
        for line, document in _records(path):
            if isinstance(document, dict):
                header = document.get("header", header)
                if document.keys() & {"p2p_perf", "proxy_trace", "dump_stats"}:
                    continue
            key, time_s = _read_record(document, header, path, line)
            times[key].append(time_s)
            refuse_if(
                len(times) > MOST_RECORDS, "trace", "too many records", "fewer of them", str(path)
            )
    refuse_if(not times, "trace", "no collectives", _ALLOWED, str(paths[0]))
    groups = grouped((key[:3], recorded) for key, recorded in times.items())
    return tuple(_sum_up(*key, runs) for key, runs in sorted(groups.items()))


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open("rb") as packed:
            file = unpacked(packed)
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
                if not line.strip():
                    continue
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError):
                    text = repr(line[:40].decode("utf-8", "replace"))
                    raise InputError(Fault("trace", text, _ALLOWED, str(path), number)) from None
    except GZIP_ERRORS as error:
        raise InputError(Fault("trace", gzip_problem(error), _ALLOWED, str(path))) from None
    except OSError as error:
        text = error.strerror or str(error)
        raise InputError(Fault("trace", text, "a file that can be read", str(path))) from None


def _read_record(
    document: Any, header: Any, path: Path, line: int
) -> tuple[tuple[str, int, int, str, int], float]:
    perf = document.get("coll_perf") if isinstance(document, dict) else None
    if not isinstance(header, dict) or not isinstance(perf, dict):
        raise InputError(Fault("trace", "another object", _ALLOWED, str(path), line))
    numbers = {"n_ranks": header.get("n_ranks")} | {
        name: perf.get(name) for name in ("coll_sn", "coll_msg_size_bytes", "coll_exec_time_us")
    }
    faults = [
        Fault(name, repr(value)[:40], "a number of zero or more", str(path), line)
        for name, value in numbers.items()
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18
    ]
    raise_faults(faults)
    ranks, serial, nbytes, time_us = (float(value or 0) for value in numbers.values())
    op = operation_of(str(perf.get("coll"))[:40])
    size = int(nbytes) * (int(ranks) if op in PARTED else 1)
    return (op, size, int(ranks), str(header.get("id"))[:40], int(serial)), time_us * 1e-6


def _sum_up(op: str, nbytes: int, ranks: int, runs: Sequence[Sequence[float]]) -> InspectedSize:
    transfer_s = statistics.median(map(min, runs))
    waits = [max(run) - min(run) for run in runs if len(run) > 1]
    rate_Bps = nbytes / transfer_s * bus_factor(op, ranks) if transfer_s > 0 and ranks > 1 else 0.0
    waiting_s = statistics.median(waits) if waits else None
    return InspectedSize(op, nbytes, ranks, len(runs), transfer_s, waiting_s, rate_Bps)
