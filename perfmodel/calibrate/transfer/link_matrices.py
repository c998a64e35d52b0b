"""Rates of links from matrices of copies between GPUs, and between host and GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import Field

from perfmodel.calibrate.checks import unlike_gpus
from perfmodel.calibrate.parameters import Parameter
from perfmodel.calibrate.readers import LinkMatrix
from perfmodel.calibrate.transfer.priors import DirectMeasurement
from perfmodel.errors import Fault, InputError, TopologyError
from perfmodel.files import FileModel, load_document
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router

SINGLE_COPY_TESTS = frozenset(
    {
        "Unidirectional P2P=Enabled Bandwidth",
        "device_to_device_memcpy_read_ce",
        "device_to_device_memcpy_write_ce",
        "host_to_device_memcpy_ce",
        "device_to_host_memcpy_ce",
    }
)
"""Tests in which one pair at a time is busy, in one direction."""


LARGEST_RATIO = 1.5
"""Times what copies usually reach of a link, from which on it is another link: the raw rate of
NVLink and PCIe is up to 1.35 times what copies reach."""


class CopyRate(FileModel):
    """What copies usually reach, as a multiple of what the templates say."""

    usual: float = Field(gt=0)
    source: str


class CopyRates(FileModel):
    """`CopyRate` by generation of GPU ("other" for those not named), and their spread."""

    nvlink: dict[str, CopyRate]
    pcie: dict[str, CopyRate]
    deviation: float = Field(gt=0)
    deviation_source: str

    def multiple(self, kind: str, generation: str) -> float | None:
        """The multiple for a kind of link; None where copies say nothing about such links."""
        rates = {"nvlink": self.nvlink, "pcie": self.pcie}.get(kind, {})
        rate = rates.get(generation, rates.get("other"))
        return None if rate is None else rate.usual


@cache
def copy_rates() -> CopyRates:
    """Read the shipped multiples."""
    return load_document(CopyRates, Path(__file__).with_name("copies.yaml"))


def measure_links(
    matrices: Sequence[LinkMatrix], topology: Topology
) -> tuple[list[DirectMeasurement], tuple[str, ...]]:
    """Factors of kinds of link from copies, and notes on matrices that were not used.

    GPUs are taken to be numbered as in the topology. A copy is taken to be as fast as the narrowest
    link on its route; the median over pairs counts.

    Raises
    ------
    InputError
        More GPUs than a host of the topology has; every fault at once.
    """
    size = topology.gpus_per_host
    faults = [
        Fault(
            "matrix",
            f"{len(m.values[0])} GPUs in {m.test!r}",
            f"up to {size}, as a host of {topology.name} has",
            m.file,
        )
        for m in matrices
        if len(m.values[0]) > size
    ]
    faults += [
        Fault(
            "GPU",
            f"{', '.join(others)} in {m.test!r}",
            f"{topology.gpu.name}, as {topology.template} has",
            m.file,
        )
        for m in matrices
        if (others := unlike_gpus(m.devices, topology))
    ]
    if faults:
        raise InputError(dict.fromkeys(faults))
    ratios: dict[str, list[float]] = {}
    notes = []
    for matrix in matrices:
        if (reason := _reason_unused(matrix)) is not None:
            notes.append(f"{matrix.test}: {reason}")
            continue
        for kind, ratio in _ratios(matrix, topology):
            if ratio > LARGEST_RATIO:
                raise InputError(
                    Fault(
                        "matrix",
                        f"a copy {ratio:.2g} times as fast as {kind} is in {topology.template}",
                        f"at most {LARGEST_RATIO:g} times: the machine that was measured "
                        "(--topology)",
                        matrix.file,
                    )
                )
            ratios.setdefault(kind, []).append(ratio)
    direct = [_direct_measurement(kind, np.log(values)) for kind, values in sorted(ratios.items())]
    if not direct:
        notes.append("no copy crossed a link whose usual share of a copy's rate is known")
    return direct, tuple(dict.fromkeys(notes))


def _direct_measurement(kind: str, logs: np.ndarray) -> DirectMeasurement:
    spread = float(np.quantile(np.abs(logs - np.median(logs)), 0.68)) if len(logs) > 2 else 0.0
    deviation = float(np.hypot(copy_rates().deviation, spread / np.sqrt(len(logs))))
    return DirectMeasurement(Parameter("bandwidth", kind), float(np.median(logs)), deviation)


def _reason_unused(matrix: LinkMatrix) -> str | None:
    """Say why a matrix says nothing about the rate of a link; None where it does."""
    reasons = (
        (
            matrix.what == "latency",
            "the latency of one copy is not that of a step in a collective's kernel",
        ),
        (
            matrix.ends == "gpu-gpu" and not matrix.p2p,
            "without peer access: a copy through host memory, which collectives do otherwise",
        ),
        (
            matrix.test not in SINGLE_COPY_TESTS,
            "several copies at a time, or by kernels: the links' own rate does not show",
        ),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _ratios(matrix: LinkMatrix, topology: Topology) -> Iterator[tuple[str, float]]:
    """Kind of the narrowest link of each pair, and the copy's rate over the usual one."""
    router = Router(topology)
    rates = topology.arcs.bandwidth_Bps
    for row, values in enumerate(matrix.values):
        for column, rate_Bps in enumerate(values):
            gpu = topology.ranks[column]
            if rate_Bps is None or (matrix.ends == "gpu-gpu" and row == column):
                continue
            try:
                cpu = router.nearest_cpu(gpu) if matrix.ends == "host-gpu" else None
                route = router.route(cpu or topology.ranks[row], gpu)
            except TopologyError:
                continue
            narrowest = min(route, key=lambda arc: rates[arc])
            kind = topology.arcs.kinds[narrowest]
            multiple = copy_rates().multiple(kind, topology.gpu.generation)
            if multiple is not None:
                yield kind, rate_Bps / (multiple * float(rates[narrowest]))
