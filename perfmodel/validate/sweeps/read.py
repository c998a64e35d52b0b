"""Recorded sweeps of collectives: a table of runs (META.csv) and the times of each.

A folder holds ``META.csv``, one row per run with the hardware as free text, and the times: one CSV
per run named after it, or one ``sweeps.csv`` with a column ``sweep_id``. The folder itself or its
subfolder ``nccl_sweeps`` may be given. Columns that are missing are taken as empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.calibrate.readers.nccl_rows import OPS
from perfmodel.errors import Fault, InputError
from perfmodel.files.csv_rows import Record, RowReader, read_table
from perfmodel.validate.sweeps.times import Row, Times, times_of

SUBFOLDER = "nccl_sweeps"
META = "META.csv"
TOGETHER = "sweeps.csv"
UNGRADED = 3
"""Trust of a sweep whose table does not grade it: counted."""

BEST = 5
"""Trust of a complete official log; `Sweep.trust`."""

SPELLINGS = {**OPS, "bcast": "broadcast"}

_NEEDED = ("sweep_id", "collective", "gpu")


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
    rows : tuple of Row
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
    rows: tuple[Row, ...]
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
    trust: int = UNGRADED
    note: str = ""
    notes: tuple[str, ...] = field(default=())


def has_sweeps(folder: Path) -> bool:
    """Whether a folder has a table of sweeps."""
    return any((place / META).is_file() for place in (folder, folder / SUBFOLDER))


def sweeps_folder(folder: Path) -> Path:
    """Return the folder in which META.csv stands: the given one or its ``nccl_sweeps``.

    Raises
    ------
    InputError
        There is no such table.
    """
    for candidate in (folder, folder / SUBFOLDER):
        if (candidate / META).is_file():
            return candidate
    actual = "no such folder" if not folder.is_dir() else f"no {META}"
    allowed = f"a folder with {META}, in itself or in {SUBFOLDER}/"
    raise InputError(Fault("--data", actual, allowed, str(folder)))


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
    missing = [name for name in _NEEDED if table and name not in table[0].cells]
    faults += [
        Fault(name, "no such column", "a column of this name", str(path)) for name in missing
    ]
    if missing or (faults and not table):
        raise InputError(faults)
    if not table:
        raise InputError(Fault("file", "no rows", "one row per sweep", str(path)))
    together = _together(root, faults)
    sweeps = _all_of(table, root, together, faults)
    if faults:
        raise InputError(faults)
    return sweeps


def _together(root: Path, faults: list[Fault]) -> Mapping[str, list[Record]]:
    """Return the records of ``sweeps.csv`` by sweep; empty without that file."""
    path = root / TOGETHER
    records: dict[str, list[Record]] = {}
    if path.is_file():
        for record in read_table(path, faults):
            records.setdefault(record.cells.get("sweep_id", ""), []).append(record)
    return records


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
        before = len(faults)
        own = root / f"{name}.csv"
        if own.is_file():
            records = read_table(own, faults)
        elif name in together:
            records = together[name]
        else:
            reader.fault("sweep_id", f"{name!r}, and no {own.name}", "a CSV with its times")
            continue
        times = times_of(records, reader)
        if len(faults) == before and not times.rows:
            reader.fault("sweep_id", f"{name!r} without a single time", "rows with size and time")
        sweeps += _sweep(name, reader, times)
    return sweeps


def _sweep(name: str, reader: RowReader, times: Times) -> list[Sweep]:
    """Make a sweep of a row of META; nothing if a number in it is wrong."""
    notes = list(times.notes)
    ranks = _ranks(reader, times, notes)
    grade = reader.number("trust")
    if grade is not None and grade > BEST:
        reader.fault("trust", f"{grade:g}", f"1 (worst) to {BEST} (best)")
    if grade is None:
        notes.append(f"no trust is stated: counted as {UNGRADED}")
    counts = {column: reader.number(column) for column in ("nic_count_per_node", "nic_gbps")}
    if ranks is None:
        return []
    nodes, per_node, nranks = ranks
    text = reader.text
    return [
        Sweep(
            id=name,
            collective=operation(text("collective")),
            gpu=text("gpu"),
            nodes=nodes,
            gpus_per_node=per_node,
            nranks=nranks,
            rows=times.rows,
            intra_node=text("intra_node"),
            inter_node=text("inter_node"),
            nic_count=counts["nic_count_per_node"],
            nic_Gbps=counts["nic_gbps"],
            nccl_version=text("nccl_version"),
            proc_model=text("proc_model"),
            env_and_algo=text("env_and_algo"),
            topology=text("topology"),
            table=text("table"),
            source=", ".join(filter(None, (text("source"), text("source_path")))),
            trust=UNGRADED if grade is None else int(grade),
            note=text("note"),
            notes=tuple(notes),
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
    if per_node not in {None, nranks // nodes}:
        notes.append(f"{nranks} ranks on {nodes} nodes, though {per_node} GPUs a node are stated")
    if times.nranks not in {None, nranks}:
        notes.append(f"the times are said to be of {times.nranks} ranks, the table says {nranks}")
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
