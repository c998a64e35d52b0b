"""A file that lists parameters: CSV, YAML, or the header of safetensors.

A list of parameters without layers does not give the order in which backward completes their
gradients; it is then the reverse of registration, as DDP assumes before its first backward. Layers
are then the runs of parameters of one module (the name up to its last dot).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from perfmodel.errors import (
    Fault,
    InputError,
    allowed_names,
    failed,
    raise_faults,
    refuse_if,
)
from perfmodel.files import line_of, read_yaml, validate_document
from perfmodel.workload.configs.safetensors import SUFFIX, is_safetensors, read_safetensors
from perfmodel.workload.model import Buffers, Layer, ParameterTensor, Workload, stated_sample
from perfmodel.workload.readers.csv_tables import list_first, read_rows
from perfmodel.workload.readers.estimated_work import complete_work, make_layer
from perfmodel.workload.readers.spec import ModelSpec

YAML_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
FILE_SUFFIXES = YAML_SUFFIXES | {".csv", SUFFIX}


def read_model(path: Path) -> Workload:
    """Read a parameter file.

    Raises `InputError`: with every fault.
    """
    if is_safetensors(path):
        return read_safetensors(path)
    if path.suffix.lower() == ".csv":
        return _from_csv(path)
    if path.suffix.lower() in YAML_SUFFIXES:
        return _from_yaml(path)
    raise InputError(
        Fault("model", repr(str(path)), "a file ending in " + ", ".join(sorted(FILE_SUFFIXES)))
    )


def _from_csv(path: Path) -> Workload:
    rows = read_rows(path, sized=True)
    tensors = tuple(ParameterTensor(row.name, row.shape or (), row.dtype) for row in rows)
    trained = [index for index, row in enumerate(rows) if row.requires_grad]
    refuse_if(
        not trained, "requires_grad", "false in every row", "at least one trained tensor", str(path)
    )
    return Workload(
        name=path.stem,
        tensors=tensors,
        layers=_group_layers(tensors, trained, {i: row.layer for i, row in enumerate(rows)}),
        source=str(path),
    )


def _group_layers(
    tensors: Sequence[ParameterTensor], trained: Iterable[int], named: Mapping[int, str | None]
) -> tuple[Layer, ...]:
    """One layer per run of parameters that name the same layer or stand in the same module."""

    def key(index: int) -> str:
        name = tensors[index].name
        return named[index] or (name.rpartition(".")[0] or name)

    return tuple(
        Layer(layer, tuple(reversed(list(indices)))) for layer, indices in groupby(trained, key)
    )


def _from_yaml(path: Path) -> Workload:
    document = read_yaml(path)
    spec = validate_document(ModelSpec, document, str(path))
    # of names that stand twice the first counts
    numbered = list(enumerate(parameter.name for parameter in spec.parameters))
    faults = _find_yaml_faults(spec, {name: position for position, name in reversed(numbered)})
    places = ([int(at) if at.isdigit() else at for at in each.field.split(".")] for each in faults)
    raise_faults(
        replace(fault, file=str(path), line=line_of(document, place))
        for fault, place in zip(faults, places, strict=True)
    )
    return make_workload(spec, str(path), path.stem)


def make_workload(spec: ModelSpec, source: str, name: str) -> Workload:
    """Turn a model file without faults into a workload; `name`: where it states none."""
    index = {parameter.name: place for place, parameter in enumerate(spec.parameters)}
    tensors = tuple(ParameterTensor(p.name, p.extents, p.dtype) for p in spec.parameters)
    workload = Workload(
        name=spec.name or name,
        tensors=tensors,
        layers=(
            tuple(make_layer(layer, index) for layer in spec.layers)
            if spec.layers
            else _group_layers(
                tensors,
                [index[p.name] for p in spec.parameters if p.requires_grad],
                {index[p.name]: p.layer for p in spec.parameters},
            )
        ),
        sample=stated_sample(spec.sample, spec.tokens_per_sample),
        buffers=_make_buffers(spec),
        input_elements=spec.inputs,
        output_elements=spec.outputs,
        stream_elements=spec.stream,
        source=source,
    )
    return complete_work(workload, spec.layers) if spec.layers else workload


def _make_buffers(spec: ModelSpec) -> tuple[Buffers, ...]:
    if spec.buffer_groups:
        return tuple(
            Buffers(each.dtype, each.tensors, int(each.size)) for each in spec.buffer_groups
        )
    return (Buffers("fp32", 1, int(spec.buffers)),) if spec.buffers else ()


def _find_yaml_faults(spec: ModelSpec, index: Mapping[str, int]) -> list[Fault]:
    """Find faults across fields: names that repeat or are unknown."""
    untrained = not any(parameter.requires_grad for parameter in spec.parameters)
    text = "no trained tensor" if spec.parameters else "nothing"
    return [
        *failed((untrained, "parameters", text, "at least one trained tensor")),
        *(
            Fault(f"parameters.{position}.name", repr(parameter.name), "each name once")
            for position, parameter in enumerate(spec.parameters)
            if index[parameter.name] != position
        ),
        *(_find_layer_faults(spec, index) if spec.layers else ()),
    ]


def _find_layer_faults(spec: ModelSpec, index: Mapping[str, int]) -> list[Fault]:
    faults: list[Fault] = []
    assigned: set[str] = set()
    trained = {parameter.name for parameter in spec.parameters if parameter.requires_grad}
    for position, layer in enumerate(spec.layers):
        for name in layer.parameters:
            if name not in index:
                allowed = allowed_names(index, name)
            elif name not in trained:
                allowed = "trained parameters only"
            else:
                allowed = "each parameter in one layer" if name in assigned else ""
            faults += failed((allowed, f"layers.{position}.parameters", repr(name), allowed))
            assigned.add(name)
    unassigned = [name for name in index if name in trained - assigned]
    text = f"no layer for {list_first(unassigned)}"
    return faults + failed((unassigned, "layers", text, "each trained parameter in one layer"))
