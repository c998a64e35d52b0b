"""Texts about machines whose ranks are processes on CPUs: they say so instead of "GPUs"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from perfmodel.report.common.document import Block, Figure, Markup, Paragraph
from perfmodel.topology.model import Topology

_RENAMED = (
    (re.compile(r", with room for the [^,]* of CUDA, NCCL and allocator"), ""),
    (re.compile(r"^(>?)GPU(?=s?\b)"), r"\1Process"),
    (re.compile(r"^(>?Process)s\b"), r"\1es"),
    (re.compile(r"\bGPUs\b"), "processes"),
    (re.compile(r"(?<!published throughputs of one )\bGPU\b"), "process"),
)
"""What is said of GPUs, and of processes; these keep no memory for CUDA."""

_USERS_OWN = ("question", "setting")


def has_processes(topology: Topology) -> bool:
    """Whether ranks are processes on CPUs."""
    return topology.gpu.generation == "cpu"


def count_ranks(topology: Topology) -> str:
    """Say how many ranks there are: "1,024 GPUs", "1 process"."""
    count = len(topology.ranks)
    singular, plural = ("process", "processes") if has_processes(topology) else ("GPU", "GPUs")
    return f"{count:,} {singular if count == 1 else plural}"


def for_ranks_of(topology: Topology, blocks: Iterable[Block | None]) -> list[Block]:
    """Blocks as they are for GPUs, renamed for processes on CPUs; what users wrote stays."""
    present = [block for block in blocks if block is not None]
    return [_renamed(block) for block in present] if has_processes(topology) else present


def _renamed(value: Any) -> Any:
    """Rename in every text of a block and of what is in it."""
    if isinstance(value, str):
        for pattern, text in _RENAMED:
            value = pattern.sub(text, value)
        return value
    if isinstance(value, Markup | Figure):
        return _drawn(value)
    if isinstance(value, Block) or hasattr(value, "__dataclass_fields__"):
        if isinstance(value, Paragraph) and value.role in _USERS_OWN:
            return value
        return replace(value, **{f.name: _renamed(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, dict):
        return {_renamed(name): _renamed(inner) for name, inner in value.items()}
    return [_renamed(inner) for inner in value] if isinstance(value, list | tuple) else value


def _drawn(block: Markup | Figure) -> Block:
    """Rename in HTML as a whole, and in what a figure writes."""
    if isinstance(block, Markup):
        return Markup(_renamed(block.html))
    import plotly.graph_objects as go

    drawn = go.Figure(_renamed(block.figure.to_plotly_json()))
    return Figure(drawn, block.name, _renamed(block.description))
