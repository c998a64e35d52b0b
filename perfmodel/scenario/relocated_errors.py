"""Errors of lower layers, at the file, line and field of the scenario that they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from perfmodel.errors import Fault, InputError
from perfmodel.scenario.model import Scenario

_FIELDS = {
    "topology": "cluster.node",
    "hosts": "cluster.nodes",
    "gpus_per_host": "cluster.gpus_per_node",
    "fabric": "cluster.fabric",
    "library": "library.name",
    "protocol": "library.protocol",
    "env.NCCL_ALGO": "library.algorithm",
    "env.NCCL_PROTO": "library.protocol",
    "profile": "profile",
    "precision": "compute.precision",
    "batch": "training.batch_per_gpu",
    "fidelity": "fidelity",
}
"""Fields of the scenario behind the parameters of the functions that read them."""


@contextmanager
def relocated_errors(
    scenario: Scenario, section: str, also: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Add the scenario's file, line and field to errors of a lower layer.

    Faults in another file (a node template, a model file) keep their place.
    """
    model = {"model": f"model.{scenario.model.source}"}
    fields = _FIELDS | model | dict(also)

    def relocate(fault: Fault) -> Fault:
        field = fault.field
        if fault.file or field.startswith("--set "):
            return fault
        first, dot, _ = field.partition(".")
        if not (dot and first in Scenario.model_fields):  # a lower layer's parameter
            field = fields.get(field, f"{section}.{field}")
        return scenario.origin.fault(field, fault.found, fault.allowed)

    try:
        yield
    except InputError as error:
        raise InputError(map(relocate, error.faults)) from error.__cause__
