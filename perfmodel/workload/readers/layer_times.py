"""Measured layer times from a file, in place of the roofline's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import Fault, allowed_names, failed, raise_faults
from perfmodel.files import line_of, read_yaml, validate_document
from perfmodel.topology.model import Gpu
from perfmodel.workload.compute_spread import measured_factors
from perfmodel.workload.memory.optimizer_states import (
    OptimizerKernels,
    optimizer_bytes,
    optimizer_launches,
    optimizer_unhidden_s,
)
from perfmodel.workload.model import LayerTimes, Workload
from perfmodel.workload.readers.csv_tables import list_first

if TYPE_CHECKING:
    from perfmodel.workload.readers.spec import ModelSpec


_Row = tuple[str, float, float, int | None]
"""Of the file: name, seconds of forward and of backward, line."""


def read_layer_times(
    path: Path | str,
    workload: Workload,
    *,
    gpu: Gpu | None = None,
    optimizer: str = "sgd-momentum",
    optimizer_kernels: OptimizerKernels = "foreach",
    master_weights: bool = True,
) -> LayerTimes:
    """Read the time of every layer from a CSV or YAML file.

    A row names a layer, or a parameter whose time counts for its layer; rows of one layer add up. A
    CSV of parameters with columns ``forward`` and ``backward`` is such a file; rows without times
    are left out. Times are those of one micro-batch on the device, with any measured waiting for
    the host.

    Parameters
    ----------
    path : Path or str
    workload : Workload
        The model whose layers the file times.
    gpu : Gpu, optional
        Gives the optimizer's time and the rate of copies if the file does not; without it they
        take no time.
    optimizer, optimizer_kernels, master_weights
        Of the measurement; for the optimizer's time.

    Returns
    -------
    LayerTimes

    Raises
    ------
    InputError
        Bad cells, names that the model does not have, layers with parameters but without times.
    """
    path = Path(path)
    spec, measured = _from_csv(path) if path.suffix.lower() == ".csv" else _from_yaml(path)
    forward_s, backward_s = _sum_by_layer(measured, workload, path)
    kernels = np.array([layer.kernels for layer in workload.layers], dtype=np.int64)
    copy_Bps = math.inf if gpu is None else gpu.memory_Bps * gpu.memory_efficiency / 2
    moved = optimizer_bytes(workload, optimizer, optimizer_kernels, master_weights=master_weights)
    unhidden_s = 0.0 if gpu is None else optimizer_unhidden_s(workload, optimizer, gpu)
    return LayerTimes(
        forward_s=forward_s,
        backward_s=backward_s,
        forward_kernels=kernels,
        backward_kernels=2 * kernels,
        launch_s=0.0 if spec.launch is None else spec.launch,
        optimizer_s=unhidden_s + moved / (2 * copy_Bps)
        if spec.optimizer is None
        else spec.optimizer,
        optimizer_kernels=optimizer_launches(workload, optimizer, optimizer_kernels),
        copy_Bps=spec.copy_rate or copy_Bps,
        copies_measured=spec.copy_rate is not None,
        source=str(path),
        spread=measured_factors(),
    )


def read_stated(path: Path | str) -> ModelSpec:
    """Return what a file of times states beside them: the device that they are of, activations.

    Raises `InputError`: a file that does not hold.
    """
    from perfmodel.workload.readers.spec import ModelSpec

    path = Path(path)
    is_csv = path.suffix.lower() == ".csv"
    return ModelSpec() if is_csv else validate_document(ModelSpec, read_yaml(path), str(path))


def _from_csv(path: Path) -> tuple[ModelSpec, list[_Row]]:
    from perfmodel.workload.readers.csv_tables import read_rows
    from perfmodel.workload.readers.spec import ModelSpec

    return ModelSpec(), [
        (row.name, row.forward_s, row.backward_s, row.line)
        for row in read_rows(path, sized=False)
        if row.forward_s is not None and row.backward_s is not None
    ]


def _from_yaml(path: Path) -> tuple[ModelSpec, list[_Row]]:
    from perfmodel.workload.readers.spec import ModelSpec

    document = read_yaml(path)
    spec = validate_document(ModelSpec, document, str(path))
    faults, measured = list[Fault](), list[_Row]()
    for position, layer in enumerate(spec.layers):
        line = line_of(document, ["layers", position])
        faults += failed(
            (
                layer.forward is None or layer.backward is None,
                f"layers.{position}.{'forward' if layer.forward is None else 'backward'}",
                "nothing",
                "a time such as '1.3 ms'",
            ),
            file=str(path),
            line=line,
        )
        measured.append((layer.name, layer.forward or 0.0, layer.backward or 0.0, line))
    faults += failed(
        (not spec.layers, "layers", "nothing", "the time of each layer"), file=str(path)
    )
    raise_faults(faults)
    return spec, measured


def _sum_by_layer(
    measured: Iterable[_Row], workload: Workload, path: Path
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum the rows of each layer; refuse unknown names and untimed layers."""
    numbered = list(enumerate(workload.layers))
    positions = {
        workload.tensors[index].name: position
        for position, layer in reversed(numbered)  # the first layer that has a tensor counts
        for index in layer.tensors
    } | {layer.name: position for position, layer in numbered}
    frozen = {tensor.name for tensor in workload.tensors} - set(positions)
    times = np.zeros((2, len(workload.layers)))
    timed, faults = set(), list[Fault]()
    for name, forward_s, backward_s, line in measured:
        if name in positions:
            times[:, positions[name]] += (forward_s, backward_s)
            timed.add(positions[name])
        elif name not in frozen:
            faults.append(
                Fault("name", repr(name), allowed_names(positions, name), str(path), line)
            )
    for column, row_s in zip(("forward", "backward"), times, strict=True):
        endless = [workload.layers[at].name for at in np.flatnonzero(~np.isfinite(row_s)).tolist()]
        text = f"an endless sum for {list_first(endless)}"
        faults += failed((endless, column, text, "times whose sum is finite"), file=str(path))
    missing = [
        layer.name
        for position, layer in enumerate(workload.layers)
        if layer.tensors and position not in timed
    ]
    text = f"no time for {list_first(missing)}"
    untimed = (missing, "layers", text, f"all layers of {workload.name}")
    raise_faults(faults + failed(untimed, file=str(path)))
    return times[0], times[1]
