"""A node template as text: YAML that loads back to the same host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.topology.importers.imported import template_text
from perfmodel.topology.templates.spec import NodeSpec
from perfmodel.units import parse_bandwidth, parse_bytes, parse_time

_BITS = ("ethernet", "infiniband")
_UNITS = {
    "latency": (("us", 1e-6), parse_time),
    "time": (("us", 1e-6), parse_time),
    "burst": (("B", 1.0), parse_bytes),
    "frame": (("B", 1.0), parse_bytes),
    "capacity": (("GB", 1e9), parse_bytes),
}
_RATES = ("bandwidth", "flow", "intra", "inter", "read", "write")


def node_text(node: NodeSpec) -> str:
    """Write a node out as a file of `topologies/`, every device and link with its source."""
    return template_text(node_document(node), [node.description])


def node_document(node: NodeSpec) -> dict[str, Any]:
    """Return a node as the plain document of its file, numbers with their units."""
    fields = node.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    ordered = {"perfmodel": 1, "kind": "node", "name": fields.pop("name", None)}
    document = {key: value for key, value in (ordered | fields).items() if value is not None}
    return {key: _quantity(key, value, bits=False) for key, value in document.items()}


def _with_units(value: Any, *, bits: bool) -> Any:
    if isinstance(value, Mapping):
        bits = value.get("kind") in _BITS
        return {key: _quantity(key, each, bits=bits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_units(each, bits=bits) for each in value]
    return value


def _quantity(key: str, value: Any, *, bits: bool) -> Any:
    if not isinstance(value, float):
        return _with_units(value, bits=bits)
    if key == "power_limit":
        return f"{value:g} W"
    if key in _RATES:
        unit = ("Gbit/s", 1.25e8) if bits or key == "flow" else ("GB/s", 1e9)
        return _write(value, unit, parse_bandwidth)
    if key in _UNITS:
        unit, parse = _UNITS[key]
        return _write(value, unit, parse)
    return value


def _write(value: float, unit: tuple[str, float], parse: Any) -> str:
    """Write a quantity with as few digits as read back to the same number."""
    name, scale = unit
    texts = (f"{value / scale:.{digits}g} {name}" for digits in (6, 9, 12, 15, 16, 17))
    base = {"us": "s", "GB/s": "B/s", "Gbit/s": "B/s", "B": "B", "GB": "B"}[name]
    return next((text for text in texts if parse(text) == value), f"{value!r} {base}")
