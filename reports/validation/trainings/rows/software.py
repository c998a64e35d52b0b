"""Software that a table states: the release of PyTorch, and what it brings along."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from perfmodel.files import FileModel, load_document

_TORCH = re.compile(r"torch[a-z]*[\s:=-]*v?(\d+)\.(\d+)")
_NCCL = re.compile(r"nccl[\s:=-]*v?(\d+\.\d+(?:\.\d+)?)")
_CONTAINER = re.compile(r"\bngc\b|nvidia|nvcr")
"""Containers of NVIDIA: they let fp32 matrix products take TF32 whatever PyTorch's default is."""
_COLUMNS = ("framework", "software", "version", "nccl_version")

Release = tuple[int, int]


class Software(FileModel):
    """The file of releases (``software.yaml``)."""

    perfmodel: Literal[1]
    kind: Literal["software"]
    source: str
    nccl: dict[str, str]
    explicit_cap_for_all: str
    explicit_cap_source: str
    matmul_fp32: str
    matmul_fp32_source: str
    foreach: str
    foreach_source: str


@cache
def releases() -> Software:
    """Return what ships with perfmodel."""
    return load_document(Software, Path(__file__).with_suffix(".yaml"))


@dataclass(frozen=True, slots=True)
class StatedSoftware:
    """What a row states of its software; None: not stated."""

    torch: Release | None = None
    nccl: str | None = None
    """As stated, else what that release of PyTorch brings along."""
    container: bool = False
    """Whether it ran in a container of NVIDIA's."""

    @property
    def keeps_first_bucket(self) -> bool:
        """Whether an explicit bucket cap leaves the small first bucket as it is."""
        return self.torch is not None and self.torch < _release(releases().explicit_cap_for_all)

    @property
    def loops_over_tensors(self) -> bool:
        """Whether optimizers take one tensor after the other."""
        return self.torch is not None and self.torch < _release(releases().foreach)

    @property
    def plain_matmul(self) -> bool:
        """Whether fp32 matrix products stay fp32 on GPUs that have TF32."""
        newer = self.torch is not None and self.torch >= _release(releases().matmul_fp32)
        return newer and not self.container


def read_software(cells: Mapping[str, str]) -> StatedSoftware:
    """Read the columns that name software: "PyTorch 1.4.0a0, CUDA 10.0, NCCL 2.4.8".

    Examples
    --------
    >>> read_software({"framework": "PyTorch 1.4, Horovod 0.19"}).nccl
    '2.4.8'
    """
    text = "; ".join(cells.get(column) or "" for column in _COLUMNS).lower()
    if cells.get("nccl_version"):
        text += f"; nccl {cells['nccl_version'].lower()}"
    release, stated = _TORCH.search(text), _NCCL.search(text)
    torch = (int(release[1]), int(release[2])) if release else None
    nccl = stated[1] if stated else None if torch is None else _bundled_nccl(torch)
    return StatedSoftware(torch, nccl, bool(_CONTAINER.search(text)))


def _bundled_nccl(torch: Release) -> str | None:
    """Version of NCCL that a release of PyTorch brings along; None: older than all listed."""
    older = [
        (_release(name), version)
        for name, version in releases().nccl.items()
        if _release(name) <= torch
    ]
    return max(older)[1] if older else None


def _release(name: str) -> Release:
    major, minor = name.split(".")
    return int(major), int(minor)
