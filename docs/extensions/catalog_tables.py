"""Tables of what ships, from the package itself: algorithms, prices, rates of failures."""

from __future__ import annotations

import inspect
import re
from importlib.resources import files

import yaml

from perfmodel.collectives.catalog import ALGORITHMS, Algorithm


def algorithms() -> str:
    """Algorithms by operation, each with the first sentence of the function that plans it."""
    lines = ["| collective | algorithm | does |", "|---|---|---|"]
    for op, rows in ALGORITHMS.items():
        lines += [f"| `{op}` | `{name}` | {_does(row)} |" for name, row in rows.items()]
    return "\n".join(lines)


def _does(row: Algorithm) -> str:
    said = " ".join((inspect.getdoc(row.maker) or "").partition("\n\n")[0].split())
    return f"{said} Only where switches add." if row.in_switch else said


def prices() -> str:
    """Price of each line of the list that ships, with its date and where it was seen."""
    return _listed("prices", "price_per_gpu_hour", "USD per GPU and hour")


def failures() -> str:
    """Rate of failures of each line of the list that ships."""
    return _listed("failures", "mtbf_per_node", "a node fails every")


def _listed(part: str, field: str, title: str) -> str:
    listed = yaml.safe_load(files("perfmodel.studies.plan").joinpath("prices.yaml").read_text())
    lines = [f"| GPU | machine | {title} | date | seen |", "|---|---|---|---|---|"]
    for line in listed[part]:
        size = line.get("gpus_per_node")
        machine = f"of {size} GPUs" if size else line.get("node", "any")
        value = re.sub(r" USD/h$", "", line[field])
        source = line["source"].replace("|", "\\|")
        lines.append(f"| `{line['gpu']}` | {machine} | {value} | {line['date']} | {source} |")
    return "\n".join(lines)
