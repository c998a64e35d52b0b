"""Sentences and short numbers computed from a result; the page and the terminal say the same."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfmodel.memo import T, first_applying
from perfmodel.units import TIMES

if TYPE_CHECKING:  # pages of topologies need no simulations, whose package takes half a second
    from perfmodel.studies.run.result import Result, SizeResult
    from perfmodel.studies.run.usage import Memory

SPACE = "\N{NO-BREAK SPACE}"
INTERVAL = f"80{SPACE}% interval"
MINUS = "\N{MINUS SIGN}"
_SIZES = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("TiB", 2.0**40))
_RATES = (("B/s", 1.0), ("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12))
_DURATIONS = tuple(
    (name, TIMES[unit])
    for name, unit in (("ns", "ns"), ("\N{MICRO SIGN}s", "us"), ("ms", "ms"), ("s", "s"))
)


def count(value: float, digits: int = 3) -> str:
    """Write a number with three significant digits, never an exponent, thousands separated.

    Examples
    --------
    >>> count(31234.0), count(0.5)
    ('31,200', '0.500')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits}g}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, min(decimals, digits))}f}".replace("-", MINUS)


def _scaled(value: float, units: tuple[tuple[str, float], ...], digits: int = 3) -> str:
    fitting = [(name, scale) for name, scale in units if abs(value) >= scale * 0.9995]
    name, scale = fitting[-1] if fitting else units[0]
    return f"{count(value / scale, digits)}{SPACE}{name}"


def duration(time_s: float, digits: int = 3) -> str:
    """Write a time with three digits; less than a picosecond, as sums leave it, is nothing.

    Examples
    --------
    >>> duration(0.0983).replace(chr(160), " ")
    '98.3 ms'
    """
    return f"0{SPACE}s" if abs(time_s) < 1e-12 else _scaled(time_s, _DURATIONS, digits)


def size(nbytes: float) -> str:
    """Write a size with a binary prefix and three digits; of bytes there are whole ones alone.

    Examples
    --------
    >>> [size(nbytes).replace(chr(160), " ") for nbytes in (7.75, 26214400.0)]
    ['8 B', '25.0 MiB']
    """
    return f"{nbytes:.0f}{SPACE}B" if abs(nbytes) < 999.5 else _scaled(nbytes, _SIZES)


def whole(text: str) -> str:
    """Drop the decimals of a round number: ``"25.0 MiB"`` becomes ``"25 MiB"``."""
    number, space, unit = text.partition(SPACE)
    return f"{float(number.replace(',', '')):,g}{space}{unit}"


def rate(rate_Bps: float) -> str:
    """Write a bandwidth with a decimal prefix and three digits."""
    return _scaled(rate_Bps, _RATES)


def percent(fraction: float) -> str:
    """Write a fraction in per cent; one digit more where rounding would hide the rest.

    Examples
    --------
    >>> [percent(f).replace(chr(160), " ") for f in (0.934, 0.9962, 0.004, 0.0)]
    ['93 %', '99.6 %', '0.4 %', '0 %']
    """
    value = 100 * fraction
    near_whole = 99 < value < 100 or 0 < value < 1
    return f"{value:.1f}{SPACE}%" if near_whole else f"{value:.0f}{SPACE}%"


def percent_column(fraction: float) -> str:
    """Write a fraction in per cent with one digit, so that a column of them lines up."""
    return f"{100 * fraction:.1f}{SPACE}%"


def signed(value: float, write: Callable[[float], str]) -> str:
    """Write a value with its sign, also that of a gain."""
    return f"{'+' if value >= 0 else MINUS}{write(abs(value))}"


def or_empty(write: Callable[[T], str], value: T | None, absent: str = "") -> str:
    """Write a value in a cell of a table that is empty, or says `absent`, where there is none."""
    return absent if value is None else write(value)


def operation(op: str) -> str:
    """Name an operation as papers do: "all-reduce"."""
    return op.replace("_", "-")


def samples(result: Result) -> str:
    """Name of samples in the plural: "images", "sequences of 512 tokens"."""
    return re.sub(r"\b\d{4,}\b", lambda number: f"{int(number[0]):,}", result.samples.plural)


def gpus(number: int) -> str:
    """``"1 GPU"``, ``"256 GPUs"``."""
    return counted(number, "GPU", "GPUs")


def nodes(number: int) -> str:
    """``"1 node"``, ``"32 nodes"``."""
    return counted(number, "node", "nodes")


def counted(number: int, singular: str, plural: str) -> str:
    """``"1 micro-batch"``, ``"8 micro-batches"``."""
    return f"{number:,}{SPACE}{singular if number == 1 else plural}"


def headline(result: Result) -> str:
    """Answer the scenario's question in one sentence."""
    main, memory = result.main, result.main.memory
    verb, begin = "trains" if main.gpus == 1 else "train", ""
    if not memory.fits:
        may, does = ("May", "does") if memory.may_fit else ("Does", "did")
        place = f"the host's {' and '.join(memory.overfull)}" if memory.fits_gpu else "GPU memory"
        verb, begin = "would train", f"{may} not fit in {place}. If it {does}, "
    linear = f", {percent(main.scaling_efficiency)} of linear scaling"
    return (
        f"{begin}{gpus(main.gpus)} {verb} {count(main.samples_per_s)} {result.samples.units}/s"
        f"{'' if main.gpus == result.efficiency_base else linear}; a step takes "
        f"{duration(main.step_time_s)}, {waiting(main)}."
    )


ROUNDING_SHARE = 1e-9
"""Share of a step below which a time is what rounding leaves of nothing."""


def waiting(point: SizeResult) -> str:
    """Say how much of the step is spent waiting for communication."""
    return first_applying(
        (point.comm_s == 0, "without any communication"),
        (
            point.exposed_comm_s < ROUNDING_SHARE * point.step_time_s,
            "with all communication hidden behind compute",
        ),
        (True, f"of which {duration(point.exposed_comm_s)} is waiting for communication"),
    )


NO_INTERVAL = "the spread of collectives on this machine has not been measured"
"""Why a size has no interval."""


def limit(point: SizeResult) -> str:
    """Say what a step would save without its bottleneck; nothing of compute and of events."""
    relief = point.relief
    if relief is None:
        return ""
    single = [each.saves_s for each in point.reliefs if len(each.parts) == 1]
    path, most = link_path(point), percent_column(max([0.0, *single]) / point.step_time_s)
    alone = f"; no part alone saves more than {most}" if len(relief.parts) > 1 and single else ""
    return (
        f"With {relief.what} a step would take "
        f"{percent_column(relief.saves_s / point.step_time_s)} less"
        f"{alone}.{f' Path: {path}.' if path else ''}"
    )


def link_path(point: SizeResult) -> str:
    """Links among what limits a step, by their ends; nothing where there are none.

    Latency and rates of the library, which limit it beside them, are no links.
    """
    return " and ".join(map(str, point.limiting_links))


def utilisation(point: SizeResult) -> str:
    """Say which share of the GPUs' peak the model's products reach; nothing where unknown."""
    meaning = "matrix products of the model over the GPUs' dense peak"
    return "" if point.mfu is None else f"MFU {percent(point.mfu)}: {meaning}."


def assumed(text: str) -> str:
    """Write a noted assumption for a list of them: "GPU launch: 7.5 µs, ...".

    Examples
    --------
    >>> assumed("gpu launch: assumption: 7.5 us, the middle")
    'GPU launch: 7.5 µs, the middle'
    """
    text = re.sub(r"(?<=\d) us\b", f" {chr(0xB5)}s", text.replace("assumption: ", "", 1))
    name, colon, rest = text.partition(": ")
    if not colon or len(name) > 40:
        return text[:1].upper() + text[1:]
    names = {"gpu": "GPU", "upi": "UPI", "dram": "DRAM", "roce": "RoCE", "pcie": "PCIe"}
    spelled = " ".join(names.get(word, word) for word in name.replace("_", " ").split(" "))
    return f"{spelled[:1].upper()}{spelled[1:]}: {rest}"


def hot_spot(point: SizeResult) -> str:
    """Say what the GPU does that does more than the others; nothing where all are alike."""
    spot = point.hot_spot
    if spot is None:
        return ""
    return (
        f"{spot.gpu} is the hot spot: it computes for {duration(spot.busy_s)} of a step, each "
        f"other GPU for {duration(spot.others_busy_s)}; only there are "
        f"{size(spot.only_there_bytes)} of optimizer states and reduced gradients."
    )


def slowest(result: Result) -> str:
    """Say what the slowest GPU costs; nothing where that is less than 1 %."""
    behind = result.slowest_gpu - 1.0
    if behind < 0.01:
        return ""
    return (
        f"GPUs differ in speed: a step waits for the slowest of {result.main.gpus:,}, which "
        f"computes {percent_column(behind)} longer than a usual one (compute.gpu_spread)."
    )


def interval(point: SizeResult) -> str:
    """Say how sure the step time is."""
    if point.interval_s is None:
        return f"no interval yet: {NO_INTERVAL}"
    low, high = point.interval_s
    return f"80{SPACE}% interval {duration(low)} to {duration(high)}"


def rests_on(point: SizeResult, *, sourced: bool = False) -> str:
    """Say which recorded trainings are near; nothing of a step without an interval."""
    if point.evidence is None:
        return ""
    source = f" Source: {point.evidence.nearest[0].source}" if sourced else ""
    return f"Rests on: {point.evidence.summary}.{source}"


def near_records(point: SizeResult) -> dict[str, str]:
    """Recorded trainings that a step rests on, and where each was published."""
    return {
        f"{near.record}, off by {percent(abs(near.error))}": near.source
        for near in (point.evidence.nearest if point.evidence else ())
    }


def span_or(unknown: str, ends: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    """Write an interval in a cell of a table, and another text where there is none."""
    return unknown if ends is None else span(*ends, write)


def span(low: float, high: float, write: Callable[[float], str]) -> str:
    """Write an interval; a unit that both ends share is written once.

    Examples
    --------
    >>> span(0.0983, 0.1, duration).replace(chr(160), " ").replace(chr(8211), "-")
    '98.3 - 100 ms'
    """
    first, last = write(low), write(high)
    number, _, unit = first.partition(SPACE)
    shared = unit and last.endswith(f"{SPACE}{unit}")
    return f"{number if shared else first}{SPACE}\N{EN DASH}{SPACE}{last}"


def scaling(result: Result) -> str:
    """Say which batch is held fixed while the cluster grows."""
    main, weak = result.main, result.scaling == "weak"
    number = main.batch_per_gpu if weak else main.global_batch
    batch = f"{number:,} {result.samples if number == 1 else samples(result)}"
    return (
        f"Weak scaling: {batch} {batch_holder(main)} at every size, so the global batch grows to "
        f"{main.global_batch:,}"
        if weak
        else f"Strong scaling: {batch} per step at every size, shared by all GPUs"
    )


def batch_holder(point: SizeResult) -> str:
    """Say whose the micro-batch is: "per GPU", or of the GPUs that share a model together."""
    return "per GPU" if point.parallel_layout is None else "per data-parallel rank and micro-batch"


def efficiency_base(result: Result) -> str:
    """Say what efficiency is relative to."""
    return f"relative to {gpus(result.efficiency_base)}"


def memory(part: Memory) -> str:
    """Say whether the training state fits, and how sure that is; what is offloaded, too."""
    has = f"{size(part.capacity_bytes)} per GPU"
    if not part.is_stated:
        return f"Memory: not stated, as the strategy does not say what it keeps of {has}"
    offloaded = host_memory(part)
    if part.fits_gpu and part.overfull:
        return f"Does not fit the host: {offloaded}"
    share = percent(part.total_bytes / part.capacity_bytes) if part.capacity_bytes else "all"
    low, high = size(part.low_bytes), size(part.high_bytes)
    used = first_applying(
        (part.is_estimated, f"{low} to {high} of {has}, activations estimated"),
        (part.low_bytes == part.high_bytes, f"{size(part.total_bytes)} of {has} ({share})"),
        (True, f"{size(part.total_bytes)} of {has} ({share}; 80 % interval {low} to {high})"),
    )
    reserve, sure = size(part.reserve_bytes), "Fits" if part.is_sure else "Probably fits"
    verdict = first_applying(
        (not part.may_fit, f"Does not fit: needs {used}"),
        (not part.fits, f"May not fit: takes {used}"),
        (
            part.tight,
            f"Tight: {used}, and CUDA, NCCL and the allocator take about {reserve} beside it",
        ),
        (
            True,
            f"{sure}: {used}, with room for the {reserve} of CUDA, NCCL and allocator",
        ),
    )
    return "; ".join(filter(None, [verdict, offloaded]))


def host_memory(part: Memory) -> str:
    """Say what is offloaded to a host's memory and drives, and what these hold; "" for nothing."""
    return "; ".join(
        f"the host's {name} {size(needed)}"
        + (
            f", not checked, as the node states no `{field}`"
            if has is None
            else f" of {size(has)} ({percent(needed / has)})"
        )
        for name, needed, has, field in (
            ("memory takes", part.host_bytes, part.host_capacity_bytes, "host_memory"),
            ("drives take", part.drive_bytes, part.drive_capacity_bytes, "nvme.capacity"),
        )
        if needed
    )


def memory_size(part: Memory) -> str:
    """What is kept on a GPU, where that is stated."""
    return size(part.total_bytes) if part.is_stated else "not stated"


def memory_verdict(part: Memory) -> str:
    """Return the same in two words: "fits", "probably fits", "tight", "may not fit" ... or ""."""
    return first_applying(
        (not part.is_stated, ""),
        (part.tight, "tight"),
        (part.is_sure, "fits"),
        (part.fits, "probably fits"),
        (part.may_fit, "may not fit"),
        (True, "does not fit"),
    )
