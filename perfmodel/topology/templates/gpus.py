"""The tables of GPUs: ``topologies/gpus.yaml``, ``accelerators.yaml`` and a user's own.

Where a data sheet is all that is known of a GPU, the rest is estimated from GPUs that were
measured. How far that may be off stands in ``workload/compute_spread.yaml``: there every shipped
GPU was taken for a new one (`reports.kernels.data_sheets`).

A GPU whose board may draw less than its data sheet says: what is left of its matrix products.

A board lowers its clock until it draws no more than it may (``nvidia-smi --power-limit``, or what
an operator fixed). Large matrix products draw all of the data sheet's power; kernels that wait for
memory draw less than half of it, and memory keeps its clock, so that they take as long as ever.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names, look_up, raise_faults, refuse_if
from perfmodel.files import USER_FOLDER, data_folder, line_of, plain, read_yaml, validate_document
from perfmodel.files.read import LARGEST_YAML_BYTES
from perfmodel.files.validate import faults_in
from perfmodel.topology.model import Gpu, fp32_peak
from perfmodel.topology.templates.spec import GpuSpec, GpuTable, is_unknown_key, resolve_source

ESTIMATED = (
    "matmul_efficiency",
    "memory_efficiency",
    "kernel_overhead",
    "launch",
    "streaming_multiprocessors",
    "overlap_slowdown",
)
"""Numbers that no data sheet has, or that few state."""

_MEDIANS = {
    "memory_efficiency": "memory_efficiency",
    "kernel_overhead": "kernel_overhead_s",
    "launch": "launch_s",
    "overlap_slowdown": "overlap_slowdown",
}
"""Numbers that are the median of those of other GPUs, and the fields of `Gpu` that have them."""

NEAREST = 3
"""Measured GPUs that an efficiency is the mean of. With the three whose peak per byte of memory
bandwidth is nearest, bf16 of a GPU that is left out is off by 11 % (standard deviation over 14
kinds of GPUs), with those of its generation by 25 %, with all by 18 %."""


def complete(
    name: str, spec: GpuSpec, measured: Sequence[Gpu]
) -> tuple[GpuSpec, Mapping[str, str]]:
    """Fill in what a data sheet leaves out; returns the numbers and the source of each filled one.

    `measured`: GPUs whose efficiencies were measured.
    Raises `InputError`: a generation of which none is known, or a precision that none has.
    """
    measured = [gpu for gpu in measured if gpu.amd == spec.generation.startswith("cdna")]
    peers = [gpu for gpu in measured if gpu.generation == spec.generation]
    generations = {gpu.generation for gpu in measured}
    refuse_if(
        not peers,
        f"gpus.{name}.generation",
        repr(spec.generation),
        f"{allowed_names(generations, spec.generation)}; or all of {', '.join(ESTIMATED)}",
    )
    efficiency, names = efficiencies(name, spec, measured)
    usual = f"assumption: as usual for GPUs of the generation {spec.generation}"
    per_unit = f"operations of fp32 per multiprocessor as of another {spec.generation} GPU"
    values: dict[str, tuple[Any, str]] = {
        **{
            field: (statistics.median(getattr(gpu, own) for gpu in peers), usual)
            for field, own in _MEDIANS.items()
        },
        "streaming_multiprocessors": (multiprocessors(spec, peers), f"assumption: {per_unit}"),
        "matmul_efficiency": (
            efficiency,
            f"assumption: the mean of {names}, the nearest in peak per byte",
        ),
    }
    left_out = {field: each for field, each in values.items() if getattr(spec, field) is None}
    numbers = {field: value for field, (value, _) in left_out.items()}
    return spec.model_copy(update=numbers), {field: why for field, (_, why) in left_out.items()}


def multiprocessors(spec: GpuSpec, peers: Sequence[Gpu]) -> int:
    """Return how many multiprocessors give a GPU its fp32 peak, at the fp32 rate of a peer's.

    The peer is the one whose ratio of tensor cores' peak to fp32 peak is closest to the GPU's: a
    generation may have chips of two kinds (A100, and GeForce or A40).
    """
    fp32 = fp32_peak(spec.peak)
    ratio = math.log(_matrix_peak(spec.peak) / fp32)

    peer = min(
        peers,
        key=lambda gpu: abs(
            math.log(_matrix_peak(gpu.peak_flops) / gpu.peak_flops["fp32"]) - ratio
        ),
    )
    return max(1, round(fp32 / peer.peak_flops["fp32"] * peer.streaming_multiprocessors))


def efficiencies(
    name: str, spec: GpuSpec, measured: Sequence[Gpu]
) -> tuple[Mapping[str, float], str]:
    """Share of each peak that large products reach, and the GPUs that it is the mean of.

    For fp32, which no tensor cores compute, all GPUs count.
    """
    intensity = math.log(_matrix_peak(spec.peak) / spec.memory_bandwidth)

    nearest = sorted(
        measured,
        key=lambda gpu: abs(math.log(_matrix_peak(gpu.peak_flops) / gpu.memory_Bps) - intensity),
    )
    shares, faults = dict[str, float](), list[Fault]()
    for precision in spec.peak:
        able = [gpu for gpu in nearest if precision in gpu.matmul_efficiency]
        if not able:
            precisions = sorted({key for gpu in measured for key in gpu.matmul_efficiency})
            faults.append(
                Fault(f"gpus.{name}.peak.{precision}", repr(precision), allowed_names(precisions))
            )
            continue
        chosen = able if precision == "fp32" else able[:NEAREST]
        shares[precision] = round(
            statistics.fmean(g.matmul_efficiency[precision] for g in chosen), 3
        )
    raise_faults(faults)
    return shares, ", ".join(gpu.name for gpu in nearest[:NEAREST])


def _matrix_peak(peaks: Mapping[str, float]) -> float:
    """Peak of 16-bit products; of what there is where a GPU has none."""
    return max(
        [peaks[precision] for precision in ("bf16", "fp16") if precision in peaks] or peaks.values()
    )


_UNSOURCED = {"generation", "sources", "source", "form", "pcie"}
_OPTIONAL = {"power", "nvlink", *ESTIMATED}
_KIND = re.compile(rb"^kind:[ \t]*[\"']?(gpus|accelerators)\b", re.MULTILINE)
_SHIPPED = ("gpus.yaml", "accelerators.yaml")


def load_gpu(name: str) -> Gpu:
    """Return one GPU of the table.

    Raises `InputError`: no GPU of that name (the message lists them), or the table is wrong.
    """
    return _entry(name)[0]


def gpu_sources(name: str) -> Mapping[str, str]:
    """Where the numbers of a GPU come from: sentence by field."""
    return _entry(name)[1]


def gpu_names() -> tuple[str, ...]:
    """Names in the table."""
    return tuple(_current_sections())


def _entry(name: str) -> tuple[Gpu, Mapping[str, str]]:
    *others, path = look_up(_current_sections(), name, "gpu")
    refuse_if(
        others,
        f"gpus.{name}",
        f"the same name in {', '.join(other.name for other in others)}",
        "in one of these files only",
        str(path),
    )
    return _read_entry(path, path.stat().st_mtime_ns, name)


def _current_sections() -> Mapping[str, tuple[Path, ...]]:
    """File of each GPU: the shipped tables, then the user's own, whose entries win.

    Several where tables of one folder have the same name.

    Entries are read where a machine has the GPU, so that a fault in another stops nobody.
    """
    sections: dict[str, tuple[Path, ...]] = {}
    for path in (*(data_folder("topologies") / name for name in _SHIPPED), *user_tables()):
        for name in _read_names(path, path.stat().st_mtime_ns):
            others = [other for other in sections.get(name, ()) if other.parent == path.parent]
            sections[name] = (*others, path)
    return sections


def user_tables() -> tuple[Path, ...]:
    """A user's tables: ``gpus.yaml``, and every other file of its folder with ``kind: gpus``."""
    shipped = data_folder("topologies").resolve()
    folders = (USER_FOLDER.expanduser() / "topologies", Path("topologies"))
    return tuple(
        path
        for folder in dict.fromkeys(folder.resolve() for folder in folders)
        if folder != shipped
        for path in sorted(folder.glob("*.yaml"))
        if path.is_file() and (path.name == "gpus.yaml" or _says_gpus(path))
    )


def _says_gpus(path: Path) -> bool:
    """Whether a file calls itself a table of GPUs, without parsing what may be no YAML."""
    try:
        return _KIND.search(path.read_bytes()[:LARGEST_YAML_BYTES]) is not None
    except OSError:
        return False


@lru_cache(maxsize=8)
def _read_document(path: Path, _modified_ns: int) -> Any:
    """Read the table once per version of the file: parsing it costs more than building a host."""
    return read_yaml(path)


def _read_names(path: Path, modified_ns: int) -> tuple[str, ...]:
    document = _read_document(path, modified_ns)
    gpus = document.get("gpus") if isinstance(document, Mapping) else None
    if not isinstance(gpus, Mapping):
        validate_document(GpuTable, document, str(path))  # says what a table has
        return ()
    return tuple(str(name) for name in gpus)


def _with_one(document: Any, name: str) -> Any:
    """The table as plain values, with one GPU alone."""
    gpus = {key: entry for key, entry in document["gpus"].items() if str(key) == name}
    return plain({**document, "gpus": gpus})


@lru_cache(maxsize=64)
def _read_entry(path: Path, modified_ns: int, name: str) -> tuple[Gpu, Mapping[str, str]]:
    """Check and make one GPU of a table.

    Raises `InputError`: with the faults of the table's head and of this entry.
    """
    document = _read_document(path, modified_ns)
    alone = _with_one(document, name)
    estimated: Mapping[str, str] = {}
    with faults_in(document, path):
        table = validate_document(GpuTable, alone)
        raise_faults(source_faults(document, str(path), only=name))
        spec = table.gpus[name]
        sources = dict(_source_texts(spec, table))
        if any(getattr(spec, field) is None for field in ESTIMATED):
            spec, estimated = complete(name, spec, measured_gpus())
    sources |= estimated
    assumed = sources.get("matmul_efficiency", "").startswith("assumption")
    return gpu_of(
        name, spec, efficiency_assumed=assumed, estimated=tuple(estimated)
    ), MappingProxyType(sources)


def gpu_of(
    name: str, spec: GpuSpec, *, efficiency_assumed: bool, estimated: tuple[str, ...]
) -> Gpu:
    """Return the GPU of a completed entry."""
    numbers: dict[str, Any] = {own: getattr(spec, field) for field, own in _NUMBERS.items()}
    return Gpu(name=name, **numbers, efficiency_assumed=efficiency_assumed, estimated=estimated)


_NUMBERS = {
    "memory": "memory_bytes",
    "memory_bandwidth": "memory_Bps",
    "peak": "peak_flops",
    "matmul_efficiency": "matmul_efficiency",
    "memory_efficiency": "memory_efficiency",
    "kernel_overhead": "kernel_overhead_s",
    "launch": "launch_s",
    "streaming_multiprocessors": "streaming_multiprocessors",
    "overlap_slowdown": "overlap_slowdown",
    "generation": "generation",
    "power": "power_W",
}
"""Names of the numbers of `Gpu`, by those of a table."""


@lru_cache(maxsize=1)
def measured_gpus() -> tuple[Gpu, ...]:
    """Shipped GPUs whose efficiencies were measured, one of those with a source in common."""
    path = data_folder("topologies") / "gpus.yaml"
    kinds: dict[str, Gpu] = {}
    for name, entry in plain(_read_document(path, path.stat().st_mtime_ns))["gpus"].items():
        if any(entry.get(field) is None for field in ESTIMATED) or entry["generation"] == "cpu":
            continue
        gpu, sources = _read_entry(path, path.stat().st_mtime_ns, name)
        if not gpu.efficiency_assumed:
            kinds.setdefault(sources["matmul_efficiency"], gpu)
    return tuple(kinds.values())


def gpu_spec(name: str) -> GpuSpec:
    """Return one GPU of the table as its file has it."""
    load_gpu(name)  # says what is wrong
    path = _current_sections()[name][-1]
    document = plain(_read_document(path, path.stat().st_mtime_ns))
    return validate_document(GpuSpec, document["gpus"][name])


def _source_texts(spec: GpuSpec, table: GpuTable) -> Mapping[str, str]:
    stated = spec.model_fields_set - _UNSOURCED
    texts = {
        field: spec.source for field in sorted(stated) if spec.source is not None
    } | spec.sources
    return {field: resolve_source(text, table.sources) for field, text in texts.items()}


def source_faults(
    document: Any, file: str | None = None, *, only: str | None = None
) -> list[Fault]:
    """Numbers of a GPU table without a source, sources of nothing, precisions that do not match.

    `only`: the one GPU to look at; default: all.
    """
    data = plain(document) if only is None else _with_one(document, only)
    keys = data.get("sources") or {}
    fields = set(GpuSpec.model_fields) - _UNSOURCED
    findings: list[tuple[str, str, str, list[str]]] = []
    for name, entry in data.get("gpus", {}).items():
        at = ["gpus", name, "sources"]
        sources, required = entry.get("sources") or {}, fields - (_OPTIONAL - set(entry))
        needed = set() if entry.get("source") else required
        peaks = set(entry["peak"])
        findings += [
            *(
                (f"sources.{f}", "nothing", "a source for this number", at)
                for f in sorted(needed - set(sources))
            ),
            *(
                (f"sources.{f}", repr(f), allowed_names(required, f), [*at, f])
                for f in sorted(set(sources) - required)
            ),
            *(
                (f"sources.{f}", repr(text), f"a sentence or {allowed_names(keys, text)}", [*at, f])
                for f, text in sources.items()
                if is_unknown_key(text, keys)
            ),
            *(
                (
                    "matmul_efficiency",
                    f"nothing for {precision!r}",
                    "an efficiency for every precision of `peak`",
                    ["gpus", name, "matmul_efficiency"],
                )
                for precision in sorted(peaks ^ set(entry.get("matmul_efficiency") or peaks))
            ),
        ]
    return [
        Fault(f"gpus.{path[1]}.{field}", found, allowed, file, line_of(document, path))
        for field, found, allowed, path in findings
    ]


_constants = cache(partial(read_yaml, Path(__file__).with_name("power_limits.yaml")))


def rate_at(share: float, generation: str = "other") -> float:
    """Rate of matrix products under a power limit, over that at full power.

    With the static share s, power is s + (1 - s) f^n at the clock f, as voltage falls with the
    clock; from the clock at which voltage is the lowest it is linear in f down to s.

    `share`: the limit over the data sheet's power, at most 1. `generation`: of the GPU.

    Examples
    --------
    >>> round(rate_at(500 / 700, "hopper"), 3)
    0.815
    """
    constants = _constants()
    chip = constants.get(generation, constants["other"])
    chip = constants[chip["as"]] if "as" in chip else chip
    static, exponent = constants["static_share"]["value"], chip["exponent"]
    lowest = chip["lowest_voltage_rate"]
    turning = static + (1 - static) * lowest**exponent
    if share >= turning:
        return float(((share - static) / (1 - static)) ** (1 / exponent))
    return float(lowest * (share - static) / (turning - static))


def limit_power(gpu: Gpu, limit_W: float | None) -> Gpu:
    """Return a GPU as fast as a limit on its board's power leaves it.

    `limit_W`: watts; None: none beside its data sheet's.
    Raises `InputError`: no data sheet says what it draws, or a limit out of the law's range.
    """
    if limit_W is None:
        return gpu
    if gpu.power_W is None:
        raise InputError(
            Fault(
                "power_limit",
                f"{limit_W:g} W",
                f"nothing: no data sheet says what a {gpu.name} draws",
            )
        )
    least_W = _constants()["least_share"]["value"] * gpu.power_W
    refuse_if(
        not least_W <= limit_W <= gpu.power_W,
        "power_limit",
        f"{limit_W:g} W",
        f"{least_W:g} to {gpu.power_W:g} W on a {gpu.name}",
    )
    rate = rate_at(limit_W / gpu.power_W, gpu.generation)
    return replace(
        gpu,
        matmul_efficiency={name: share * rate for name, share in gpu.matmul_efficiency.items()},
        power_W=limit_W,
        limited_rate=rate,
        limited_width=-_constants()["width"]["value"] * math.log(rate),
    )
