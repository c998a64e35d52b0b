"""Constants of NCCL's tuner as of one version (``tuner.yaml``)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

from perfmodel.files import FileModel, load_document

Three = tuple[float, float, float]
"""Of LL, LL128 and Simple; or on one, two and more hosts."""

GENERATIONS = ("volta", "ampere", "hopper", "blackwell")


class Plateau(FileModel):
    """Factor on a ring's latency between hosts, before sm80 and since."""

    old: float
    new: float


class Constants(FileModel):
    """Contents of ``tuner.yaml``; see its comments."""

    base_us: dict[str, Three]
    nvlink_us: dict[str, Three]
    pcie_us: dict[str, Three]
    network_us: dict[str, Three]
    ll_max_GBps: dict[str, Three]
    ring_ll128_GBps: dict[str, Three]
    tree_ll128_GBps: dict[str, Three]
    tree_GBps: dict[str, Three]
    nvls_tree_GBps: dict[str, Three]
    nvls_efficiency: dict[str, float]
    nvls_by_steps: bool
    nvls_tree_ratio: Literal["steps", "five_sixths", "hops"]
    nvls_tree_halved: bool
    nvls_tree_linear: bool
    post_us: dict[str, float]
    ring_ll_factor: float
    ring_ll_factor_local: float
    ring_ll128_lonely: float
    pat_factor: float
    pat: bool
    ring_hops_per_host: bool
    ll_intra_factor: float
    ampere_cap_GBps: float
    plateau: Plateau
    plateau_rank_bytes: float
    tree_correction: dict[str, tuple[float, ...]]


class _Change(FileModel):
    before: str
    set: dict[str, Any] = {}
    base_us: dict[str, Three] = {}
    nvlink_us: dict[str, Three] = {}
    pcie_us: dict[str, Three] = {}
    network_us: dict[str, Three] = {}


class _Table(FileModel):
    perfmodel: int
    source: str
    newest: Constants
    changes: tuple[_Change, ...]


@cache
def _table() -> _Table:
    return load_document(_Table, Path(__file__).with_name("tuner.yaml"))


@cache
def constants_of(release: tuple[float, float]) -> Constants:
    """Constants of a version, (major, minor); those before 2.7 count as 2.7."""
    values = _table().newest.model_dump()
    for change in _table().changes:
        major, minor = change.before.split(".")
        if release >= (int(major), int(minor)):
            break
        values |= change.set
        for name in ("base_us", "nvlink_us", "pcie_us", "network_us"):
            values[name] = values[name] | getattr(change, name)
    return Constants.model_validate(values)
