"""nccl-tests' JSON (``-J out.json``, versions 2 and 3) and rccl-tests' (``-Z json -x out``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from perfmodel.calibrate.readers.nccl_rows import OPS, op_named, op_of_file
from perfmodel.calibrate.readers.sweep_records import (
    PERFORMANCE,
    Sweep,
    refuse,
    rows_of,
    version_text,
)
from perfmodel.errors import Fault, InputError, allowed_names, failed

Document = Mapping[str, Any]
PLACES = (("out_of_place", False), ("in_place", True))


def is_nccl_json(document: object) -> bool:
    """Tell whether a document is what ``nccl-tests -J`` writes."""
    return isinstance(document, Mapping) and {"nccl_version", "config", "results"} <= set(document)


def is_rccl_json(document: object) -> bool:
    """Tell whether a document is what ``rccl-tests -Z json`` writes: a list of placements."""
    return (
        isinstance(document, list)
        and bool(document)
        and all(
            isinstance(record, Mapping) and {"size", "time", "inPlace"} <= set(record)
            for record in document
        )
    )


def read_nccl_json(document: Document, file: str, *, op: str | None = None) -> list[Sweep]:
    """Read a document of nccl-tests; of its environment only the library's own variables.

    Raises
    ------
    InputError
        No rows, no devices, an unknown collective, or fields that are not as NCCL writes them.
    """
    return _checked(lambda: _of_nccl(document, file, op), file)


def read_rccl_json(
    records: list[Document], file: str, *, op: str | None = None, ranks: int | None = None
) -> list[Sweep]:
    """Read the records of rccl-tests.

    Raises
    ------
    InputError
        Records without a collective that is known, or fields that are not as rccl-tests writes.
    """
    return _checked(lambda: _of_rccl(records, file, op, ranks), file)


def _checked(read: Callable[[], list[Sweep]], file: str) -> list[Sweep]:
    try:
        sweeps = read()
        refuse(None, (not sweeps, "results", "no row with a size and a time", "at least one"))
    except InputError as error:
        raise error.located(file) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(
            Fault(
                "results",
                f"{type(error).__name__}: {str(error)[:80]}",
                "the fields that the tests write",
                file,
            )
        ) from None
    return sweeps


def _of_nccl(document: Document, file: str, op: str | None) -> list[Sweep]:
    devices, results = list(document["config"].get("devices") or []), document["results"]
    arguments = [str(part) for part in document.get("args") or []]
    name = op or op_named(arguments[0] if arguments else "") or op_of_file(Path(file).name)
    groups = {device.get("group", 0) for device in devices}
    problems = (
        (name is None, "args", "no executable that names a collective", "--op"),
        (len(devices) < 2, "config.devices", f"{len(devices)} devices", "at least 2 ranks"),
        (len(groups) > 1, "config.devices", "several groups that run at once", "one group"),
        (not results, "results", "none", "rows: the run was cut off"),
    )
    if (faults := failed(*problems)) or name is None:
        raise InputError(faults)
    processes = {(device["hostname"], device["pid"]) for device in devices}
    return [
        Sweep(
            op=name,
            ranks=len(devices),
            nodes=len({device["hostname"] for device in devices}),
            dtype=str(results[0]["type"]),
            in_place=in_place,
            rows=rows,
            devices=tuple(dict.fromkeys(str(device["device_info"]) for device in devices)),
            version=version_text(int(document["nccl_version"])),
            one_process=len(processes) < len(devices),
            env=_environment(document),
            started=str(document.get("start_time", "")),
            file=Path(file).name,
        )
        for place, in_place in PLACES
        if (rows := rows_of(_timed(results, place)))
    ]


def _environment(document: Document) -> dict[str, str]:
    """Variables of the library that change its times, and no others."""
    pairs = [str(text).partition("=") for text in document.get("env") or []]
    return {name: value for name, _, value in pairs if name in PERFORMANCE}


def _timed(results: Iterable[Document], place: str) -> Iterable[tuple[int, float]]:
    for result in results:
        cell = result.get(place)
        if cell:
            yield int(result["size"]), float(cell.get("time", cell.get("cpu_time")))


def _of_rccl(records: list[Document], file: str, op: str | None, ranks: int | None) -> list[Sweep]:
    tables: dict[tuple[str, int, int | None, str, bool], list[tuple[int, float]]] = {}
    known = allowed_names(set(OPS.values())) + " (--op)"
    for record in records:
        # AllReduce -> all_reduce.
        spelled = re.sub(r"(?<!^)([A-Z])", r"_\1", str(record.get("name", ""))).lower()
        name = op or OPS.get(spelled) or ""
        count = int(record.get("ranks") or record.get("gpus") or ranks or 0)
        refuse(
            None,
            (not name, "name", repr(record.get("name")), known),
            (count < 2, "gpus", str(count), "at least 2 ranks"),
        )
        in_place, dtype = bool(int(record["inPlace"])), str(record.get("type", "float"))
        key = (name, count, record.get("nodes"), dtype, in_place)
        tables.setdefault(key, []).append((int(record["size"]), float(record["time"])))
    return [
        Sweep(
            op=name,
            ranks=count,
            nodes=nodes,
            dtype=dtype,
            in_place=in_place,
            rows=rows,
            tool="rccl-tests",
            file=Path(file).name,
        )
        for (name, count, nodes, dtype, in_place), timed in tables.items()
        if (rows := rows_of(timed))
    ]
