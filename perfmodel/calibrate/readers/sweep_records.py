"""Records of what measuring tools write: sweeps over size, and matrices of links.

Logs print rounded numbers: each is read with how far rounding may have moved it.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from perfmodel.errors import failed, raise_faults
from perfmodel.units import LONGEST_MEASURED_S, MOST_MEASURED_BYTES, SHORTEST_MEASURED_S

PERFORMANCE = frozenset(
    f"NCCL_{name}"
    for name in (
        "ALGO",
        "PROTO",
        "MIN_NCHANNELS",
        "MAX_NCHANNELS",
        "MIN_CTAS",
        "MAX_CTAS",
        "MAX_NRINGS",
        "MIN_NRINGS",
        "P2P_LEVEL",
        "P2P_DISABLE",
        "SHM_DISABLE",
        "NET_GDR_LEVEL",
        "CROSS_NIC",
        "IB_DISABLE",
        "NVLS_ENABLE",
        "COLLNET_ENABLE",
        "BUFFSIZE",
        "NTHREADS",
        "PXN_DISABLE",
        "IB_QPS_PER_CONNECTION",
        "NET",
        "SOCKET_NTHREADS",
        "NSOCKS_PERTHREAD",
    )
)
"""Variables that are taken from a log. Everything else in it may be a secret and stays there."""


SPIKE_RATIO = 1.2
"""Times its usual multiple of the time in place from which on a time out of place is a spike: in 78
recorded tables both differ by 1 % (robust standard deviation; 5 % in the worst but one), and those
that differ by more, by up to 5 times, are of first iterations and of single disturbances."""

FEWEST_PAIRS = 4
"""Sizes that tell what multiple is usual; with fewer both times are taken to be the same."""


def refuse(line: int | None, *problems: tuple[object, str, str, str]) -> None:
    """Raise the first of some problems that holds: whether it does, field, found, allowed."""
    raise_faults(replace(fault, line=line) for fault in failed(*problems)[:1])


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One size: bytes as the tool counts them, and seconds per collective.

    `in_place_s`: time in place, where it was recorded beside one out of place.
    """

    nbytes: int
    time_s: float
    in_place_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Sweep:
    """One table of times over size.

    Parameters
    ----------
    op : str
        As `training.plan.Op` spells it.
    ranks : int
    nodes : int or None
        None where the log does not name its hosts.
    dtype : str
    in_place : bool
    rows : tuple of SweepRow
        By size.
    devices : tuple of str
        Models of GPU, each once.
    version : str or None
        Of the library.
    one_process : bool or None
        Whether one process drove several GPUs.
    env : mapping of str to str
        Variables of `PERFORMANCE` alone.
    started : str
        Date and time as the tool wrote it; empty where it did not.
    tool : str
        "nccl-tests" or "rccl-tests".
    file : str
        Name, without its folder.
    line : int
        Where the table begins, one-based; 0: not text.
    notes : tuple of str
        What was left out.
    """

    op: str
    ranks: int
    nodes: int | None
    dtype: str
    in_place: bool
    rows: tuple[SweepRow, ...]
    devices: tuple[str, ...] = ()
    version: str | None = None
    one_process: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    started: str = ""
    tool: str = "nccl-tests"
    file: str = ""
    line: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """One matrix of a link benchmark.

    Parameters
    ----------
    test : str
        Name in the tool's words.
    what : {"bandwidth", "latency"}
    ends : {"gpu-gpu", "host-gpu"}
        Rows and columns.
    p2p : bool
        Whether GPUs reached each other's memory.
    values : tuple of tuple of (float or None)
        Bytes per second, or seconds; None: not measured. Row: source (or host).
    devices : tuple of str
        Model of each GPU, as far as named.
    file : str
    """

    test: str
    what: str
    ends: str
    p2p: bool
    values: tuple[tuple[float | None, ...], ...]
    devices: tuple[str, ...] = ()
    file: str = ""


def spikes(times_s: Mapping[int, float], in_place_s: Mapping[int, float]) -> dict[int, float]:
    """Sizes whose time out of place is a spike, and what it would be without one; seconds.

    A disturbance only makes times longer, so that of two measurements of a size the short one is
    right: the time in place, times what times out of place usually are of it.

    Examples
    --------
    >>> out = {8: 90e-6, 16: 30e-6, 32: 31e-6, 64: 32e-6}
    >>> spikes(out, {8: 30e-6, 16: 30e-6, 32: 31e-6, 64: 32e-6})
    {8: 3e-05}
    """
    ratios = {n: times_s[n] / in_place_s[n] for n in times_s if in_place_s.get(n, 0.0) > 0.0}
    usual = statistics.median(ratios.values()) if len(ratios) >= FEWEST_PAIRS else 1.0
    return {n: in_place_s[n] * usual for n, ratio in ratios.items() if ratio > SPIKE_RATIO * usual}


def without_spikes(rows: Iterable[SweepRow]) -> tuple[SweepRow, ...]:
    """Rows with the time in place where only that out of place is a spike."""
    rows = list(rows)
    in_place_s = {row.nbytes: row.in_place_s for row in rows if row.in_place_s is not None}
    instead_s = spikes({row.nbytes: row.time_s for row in rows}, in_place_s)
    return tuple(replace(row, time_s=instead_s.get(row.nbytes, row.time_s)) for row in rows)


def rows_of(times_us: Iterable[tuple[int, float | None]]) -> tuple[SweepRow, ...]:
    """Return sizes and times (us) by size; rows of size zero and without a time are left out.

    Raises `InputError`: a size or a time that nothing has, as a damaged digit makes it.
    """
    times_s = {n: time_us * 1e-6 for n, time_us in times_us if n > 0 and time_us and time_us > 0}
    allowed = f"from {SHORTEST_MEASURED_S * 1e6:g} to {LONGEST_MEASURED_S * 1e6:g} us"
    for nbytes, time_s in times_s.items():
        refuse(
            None,
            (
                nbytes > MOST_MEASURED_BYTES,
                "size",
                f"{nbytes} B",
                f"at most {MOST_MEASURED_BYTES:,}",
            ),
            (
                not SHORTEST_MEASURED_S <= time_s <= LONGEST_MEASURED_S,
                "time",
                f"{time_s * 1e6:g} us for {nbytes:,} B",
                allowed,
            ),
        )
    return tuple(SweepRow(nbytes, times_s[nbytes]) for nbytes in sorted(times_s))


def version_text(number: int) -> str | None:
    """Write NCCL's version number (22605) as people do ("2.26.5"); None for zero.

    Source: ``NCCL_VERSION`` in nccl.h: X*10000 + Y*100 + Z from 2.9 on, X*1000 + Y*100 + Z before.
    """
    major = 10000 if number >= 10000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}" if number > 0 else None


_NUMBER = re.compile(r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")


def number(text: str) -> float | None:
    """Read a number as C prints it; None for "N/A", "nan" and everything else."""
    return float(text) if _NUMBER.match(text) else None


@dataclass(frozen=True, slots=True)
class Printed:
    """A number in a log.

    Parameters
    ----------
    value : float
    off : float
        Most that rounding to its last digit may have changed.
    """

    value: float
    off: float

    @property
    def low(self) -> float:
        """The least that was printed so."""
        return self.value - self.off

    @property
    def high(self) -> float:
        """The most that was printed so."""
        return self.value + self.off


def printed(text: str) -> Printed | None:
    """Read a number with its rounding; None for what is none.

    Examples
    --------
    >>> printed("12")
    Printed(value=12.0, off=0.51)
    """
    value = number(text)
    if value is None:
        return None
    mantissa, _, exponent = text.lower().partition("e")
    if len(exponent) > 4:  # beyond any float
        return Printed(value, math.inf)
    digits = len(mantissa.partition(".")[2]) - int(exponent or 0)
    # A little over half of the last digit: what is printed was computed in other steps.
    return Printed(value, 0.51 * 10.0 ** -min(max(digits, -300), 300))


_GROUPED = re.compile(r"\d{1,3}([,.'_])\d{3}(?:\1\d{3})*")
_DECIMAL_COMMA = re.compile(r"(\d+),(\d{1,2})")
_GROUPED_DECIMAL = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def plain_whole(text: str) -> str:
    """A whole number without marks between its thousands.

    Examples
    --------
    >>> plain_whole("1.048.576"), plain_whole("1,024"), plain_whole("4096")
    ('1048576', '1024', '4096')
    """
    grouped = _GROUPED.fullmatch(text)
    return text.replace(grouped[1], "") if grouped else text


def plain_number(text: str) -> str:
    """A number with a point before its decimals: logs have at most two digits behind a comma.

    Examples
    --------
    >>> plain_number("23,83"), plain_number("1,234.5"), plain_number("N/A")
    ('23.83', '1234.5', 'N/A')
    """
    if _GROUPED_DECIMAL.fullmatch(text):
        return text.replace(",", "")
    decimal = _DECIMAL_COMMA.fullmatch(text)
    return f"{decimal[1]}.{decimal[2]}" if decimal else text


_RANK = re.compile(
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


def listed_rank(line: str) -> ListedRank | None:
    """Read a line of the list."""
    match = _RANK.search(line)
    if match is None:
        return None
    rank, group, process, host, device, bus, rest = match.groups()
    model = " ".join(re.sub(r"\s*(\||\\n).*$", "", rest).split())
    return ListedRank(int(rank), group or "0", process or "", host, int(device), bus, model)
