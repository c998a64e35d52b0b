"""Recorded sweeps of collectives: a table of runs (META.csv) and the times of each.

A folder holds ``META.csv``, one row per run with the hardware as free text, and the times: one CSV
per run named after it, or one ``sweeps.csv`` with a column ``sweep_id``. The folder itself or its
subfolder ``nccl_sweeps`` may be given. Columns that are missing are taken as empty.

Sizes and times of one recorded sweep, from the rows of its CSV.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.calibrate.readers.nccl_rows import OPS
from perfmodel.calibrate.readers.sweep_records import SweepRow
from perfmodel.errors import Fault, InputError, raise_faults
from perfmodel.files.csv_rows import Record, RowReader, read_table
from perfmodel.memo import applying, grouped

_SIZES = ("size_bytes", "nbytes", "bytes", "size")
_TIMES = {"time_us": 1e-6, "time_ms": 1e-3, "time_s": 1.0}
_IN_PLACE = {"time_us_inplace": 1e-6, "time_us_in_place": 1e-6}
_LEGIBLE_GBPS = 0.1
"""A bandwidth printed with two decimals tells the time to a few per cent from here on."""
_UNIT_FACTOR = 2.0
"""Times further than this from what their bandwidth says are in another unit."""


@dataclass(frozen=True, slots=True)
class Times:
    """Rows by size, the number of ranks that they state, and notes on how they were read."""

    rows: tuple[SweepRow, ...]
    nranks: int | None
    notes: tuple[str, ...]


def times_of(records: Sequence[Record], meta: RowReader) -> Times:
    """Read the rows of one sweep; faults go to those of `meta`."""
    notes: dict[str, None] = {}
    timed: list[tuple[RowReader, SweepRow]] = []
    for record in records:
        reader = RowReader(record, meta.faults)
        nbytes = _size(reader, notes)
        time_s = None if nbytes is None else _time(reader, nbytes, notes)
        if nbytes is not None and time_s is not None:
            in_place = (_printed(reader, name) * scale for name, scale in _IN_PLACE.items())
            timed.append((reader, SweepRow(nbytes, time_s, next(filter(None, in_place), None))))
    ranks = {count for reader, _ in timed if (count := reader.count("nranks")) is not None}
    ratios = [
        row.nbytes / row.time_s / 1e9 / algbw
        for reader, row in timed
        if (algbw := _printed(reader, "algbw_GBps")) >= _LEGIBLE_GBPS
    ]
    _check_unit(ratios, records, meta)
    return Times(
        tuple(sorted((row for _, row in timed), key=lambda row: row.nbytes)),
        ranks.pop() if len(ranks) == 1 else None,
        tuple(notes),
    )


def _printed(reader: RowReader, field: str) -> float:
    """Return a printed number above zero, or 0.0: small bandwidths are printed so."""
    try:
        value = float(reader.text(field))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0


def _size(reader: RowReader, notes: dict[str, None]) -> int | None:
    field = next((name for name in _SIZES if name in reader.record.cells), None)
    if field is None:
        reader.fault("size_bytes", "no such column", "sizes in bytes")
        return None
    if reader.text(field) in {"0", "0.0"}:  # nccl-tests lists sizes that round down to nothing
        notes["rows of zero bytes left out"] = None
        return None
    if not reader.text(field):
        reader.fault(field, "nothing", "a size in bytes")
        return None
    return reader.count(field)


def _time(reader: RowReader, nbytes: int, notes: dict[str, None]) -> float | None:
    """Time of a row: out of place, in place, or from the bandwidth; None if there is none."""
    for name, scale in (_TIMES | _IN_PLACE).items():
        if reader.text(name):
            value = reader.number(name)
            if value is None:
                return None
            if name in _IN_PLACE:
                notes["times in place where none out of place was recorded"] = None
            return value * scale
    algbw = _printed(reader, "algbw_GBps")
    if not algbw:
        reader.fault("time_us", "nothing", "a time in microseconds, or algbw_GBps")
        return None
    notes["times derived from the printed bandwidth"] = None
    return nbytes / algbw / 1e9


def _check_unit(ratios: Sequence[float], records: Sequence[Record], meta: RowReader) -> None:
    """Refuse times that contradict the bandwidths beside them."""
    typical = statistics.median(ratios) if ratios else 1.0
    if not 1 / _UNIT_FACTOR <= typical <= _UNIT_FACTOR:
        nearest = {1e3: "milliseconds", 1e6: "seconds", 1e-3: "nanoseconds"}
        unit = next(
            (unit for factor, unit in nearest.items() if 0.5 <= typical / factor <= 2),
            "another unit or size",
        )
        actual = f"times that disagree with algbw_GBps by a factor of {typical:.3g} ({unit}?)"
        RowReader(records[0], meta.faults).fault(
            "time_us", actual, "microseconds that give the bandwidth printed beside them"
        )


SUBFOLDER = "nccl_sweeps"
META = "META.csv"
TOGETHER = "sweeps.csv"
UNGRADED_TRUST = 3
"""Trust of a sweep whose table does not grade it: counted."""

BEST_TRUST = 5
"""Trust of a complete official log; `Sweep.trust`."""

SPELLINGS = {**OPS, "bcast": "broadcast"}

_NEEDED = ("sweep_id", "collective", "gpu")
_AS_WRITTEN = (
    "gpu",
    "intra_node",
    "inter_node",
    "nccl_version",
    "proc_model",
    "env_and_algo",
    "topology",
    "table",
    "note",
)
"""Columns that a sweep has as their text."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One recorded run of one collective over several sizes.

    Parameters
    ----------
    id : str
    collective : str
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all" or what
        the table says.
    gpu, intra_node, inter_node, proc_model, env_and_algo, note : str
        As the recorder wrote them.
    nodes, gpus_per_node, nranks : int
    nic_count, nic_Gbps : float or None
        NICs of a host and the rate of one; None: not stated.
    nccl_version : str
        Empty: not stated.
    topology : str
        Name of a template or a YAML file; empty: to be inferred from the text.
    table : str
        Sweeps of one table weigh together as much as one sweep alone; empty: a table of its own.
    source : str
    trust : int
        5 complete and official to 2 recalled or hardware unknown.
    rows : tuple of SweepRow
        In the order of their sizes.
    notes : tuple of str
        Peculiarities of the files and how they were read.
    """

    id: str
    collective: str
    gpu: str
    nodes: int
    gpus_per_node: int
    nranks: int
    rows: tuple[SweepRow, ...]
    intra_node: str = ""
    inter_node: str = ""
    nic_count: float | None = None
    nic_Gbps: float | None = None
    nccl_version: str = ""
    proc_model: str = ""
    env_and_algo: str = ""
    topology: str = ""
    table: str = ""
    source: str = ""
    trust: int = UNGRADED_TRUST
    note: str = ""
    notes: tuple[str, ...] = field(default=())


def find_sweeps(folder: Path) -> Path | None:
    """Return the folder in which META.csv stands: the given one or its ``nccl_sweeps``, if any."""
    return next((place for place in (folder, folder / SUBFOLDER) if (place / META).is_file()), None)


def sweeps_folder(folder: Path) -> Path:
    """Return the folder in which META.csv stands: the given one or its ``nccl_sweeps``.

    Raises
    ------
    InputError
        There is no such table.
    """
    if found := find_sweeps(folder):
        return found
    raise InputError(
        Fault(
            "--data",
            f"no {META}" if folder.is_dir() else "no such folder",
            f"a folder with {META}, in itself or in {SUBFOLDER}/",
            str(folder),
        )
    )


def read_sweeps(folder: Path | str) -> list[Sweep]:
    """Read all sweeps of a folder.

    Raises
    ------
    InputError
        Every fault of every file: no META.csv, unreadable CSV, times of zero or less, sizes that
        are not whole numbers, times that contradict the bandwidth beside them (wrong unit).
    """
    root = sweeps_folder(Path(folder))
    path = root / META
    faults: list[Fault] = []
    table = read_table(path, faults)
    if not table:
        raise InputError(faults or Fault("file", "no rows", "one row per sweep", str(path)))
    missing = [
        Fault(name, "no such column", "a column of this name", str(path))
        for name in _NEEDED
        if name not in table[0].cells
    ]
    if missing:
        raise InputError([*faults, *missing])
    sweeps = _all_of(table, root, _together(root, faults), faults)
    raise_faults(faults)
    return sweeps


def _together(root: Path, faults: list[Fault]) -> Mapping[str, list[Record]]:
    """Return the records of ``sweeps.csv`` by sweep; empty without that file."""
    path = root / TOGETHER
    records = read_table(path, faults) if path.is_file() else []
    return grouped((record.cells.get("sweep_id", ""), record) for record in records)


def _all_of(
    table: Sequence[Record],
    root: Path,
    together: Mapping[str, list[Record]],
    faults: list[Fault],
) -> list[Sweep]:
    sweeps: list[Sweep] = []
    names: set[str] = set()
    for record in table:
        name = record.cells["sweep_id"]
        reader = RowReader(record, faults)
        if not name or name in names or Path(name).name != name:
            reader.fault("sweep_id", repr(name), "a name of its own for each sweep, without '/'")
            continue
        names.add(name)
        before, own = len(faults), root / f"{name}.csv"
        if not own.is_file() and name not in together:
            reader.fault("sweep_id", f"{name!r}, and no {own.name}", "a CSV with its times")
            continue
        times = times_of(read_table(own, faults) if own.is_file() else together[name], reader)
        if len(faults) == before and not times.rows:
            reader.fault("sweep_id", f"{name!r} without a single time", "rows with size and time")
        sweeps += _sweep(name, reader, times)
    return sweeps


def _sweep(name: str, reader: RowReader, times: Times) -> list[Sweep]:
    """Make a sweep of a row of META; nothing if a number in it is wrong."""
    notes = list(times.notes)
    ranks = _ranks(reader, times, notes)
    grade = reader.number("trust")
    if grade is not None and grade > BEST_TRUST:
        reader.fault("trust", f"{grade:g}", f"1 (worst) to {BEST_TRUST} (best)")
    notes += applying((grade is None, f"no trust is stated: counted as {UNGRADED_TRUST}"))
    nic_count, nic_Gbps = (reader.number(column) for column in ("nic_count_per_node", "nic_gbps"))
    if ranks is None:
        return []
    nodes, per_node, nranks = ranks
    return [
        Sweep(
            id=name,
            collective=operation(reader.text("collective")),
            nodes=nodes,
            gpus_per_node=per_node,
            nranks=nranks,
            rows=times.rows,
            nic_count=nic_count,
            nic_Gbps=nic_Gbps,
            source=", ".join(filter(None, map(reader.text, ("source", "source_path")))),
            trust=UNGRADED_TRUST if grade is None else int(grade),
            notes=tuple(notes),
            **{column: reader.text(column) for column in _AS_WRITTEN},
        )
    ]


def _ranks(reader: RowReader, times: Times, notes: list[str]) -> tuple[int, int, int] | None:
    """Return nodes, GPUs of each and ranks; whichever one is missing follows from the others."""
    nodes, per_node, nranks = (
        reader.count(column) for column in ("nodes", "gpus_per_node", "nranks")
    )
    if nranks is None:
        nranks = nodes * per_node if nodes and per_node else times.nranks
    if nodes is None and nranks:
        nodes = nranks // per_node if per_node else 1
        notes.append(f"nodes not stated: {nodes}")
    if nranks is None or not nodes:
        reader.fault("nranks", "nothing", "nranks, or nodes and gpus_per_node")
        return None
    if nranks % nodes:
        reader.fault("nranks", f"{nranks} on {nodes} nodes", "as many ranks on every node")
        return None
    spread = f"{nranks} ranks on {nodes} nodes, though {per_node} GPUs a node are stated"
    said = f"the times are said to be of {times.nranks} ranks, the table says {nranks}"
    notes += applying(
        (per_node not in {None, nranks // nodes}, spread),
        (times.nranks not in {None, nranks}, said),
    )
    return nodes, nranks // nodes, nranks


def operation(text: str) -> str:
    """Name of a collective as this package spells it: ``"AllReduce"`` becomes ``"all_reduce"``.

    Examples
    --------
    >>> [operation(t) for t in ("allreduce", "Reduce-Scatter", "alltoall", "all_gather_perf")]
    ['all_reduce', 'reduce_scatter', 'all_to_all', 'all_gather']
    """
    folded = text.lower().removesuffix("_perf")
    letters = "".join(c for c in folded if c.isalpha())
    return SPELLINGS.get(letters, folded.strip().replace("-", "_").replace(" ", "_"))
