"""Rates of servers' processes, as ``server_rates.yaml`` has them."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from perfmodel.files import read_yaml
from perfmodel.units import parse_bandwidth, parse_time

_table = cache(partial(read_yaml, Path(__file__).with_name("server_rates.yaml")))


@cache
def cpu_rate_Bps(threads: int | None = None, memory_Bps: float | None = None) -> float:
    """Memory that a server's threads read and write: what cores do, or the memory if it is less.

    `threads`, `memory_Bps`: by default those of `server_rates.yaml`; bytes per second.
    """
    cores_Bps = (threads or int(_table()["threads"])) * parse_bandwidth(_table()["core"])
    return min(cores_Bps, memory_Bps or parse_bandwidth(_table()["memory"]))


def rpc_s() -> float:
    """Time of a remote call and its answer beside their bytes; seconds."""
    return parse_time(_table()["call"])
