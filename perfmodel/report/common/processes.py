"""Texts about machines whose ranks are processes on CPUs, or GPUs of AMD, in their own words.

They are written for NVIDIA's GPUs; of processes they say so, and of AMD's GPUs "XGMI".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from perfmodel.report.common.document import Block, Figure, Paragraph
from perfmodel.topology.model import Topology

_Terms = tuple[tuple[re.Pattern[str], str], ...]

_PROCESSES: _Terms = (
    (re.compile(r", with room for the [^,]* of CUDA, NCCL and allocator"), ""),
    (re.compile(r"^(>?)GPU(?=s?\b)"), r"\1Process"),
    (re.compile(r"^(>?Process)s\b"), r"\1es"),
    (re.compile(r"\bGPUs\b"), "processes"),
    (re.compile(r"(?<!published throughputs of one )\bGPU\b"), "process"),
)
"""What is said of GPUs, and of processes; these keep no memory for CUDA."""

_AMD: _Terms = (
    (re.compile(r"\bNVLinks\b"), "XGMI links"),
    (re.compile(r"\bNVLink\b"), "XGMI"),
    (re.compile(r"(?:(?<=\()|^)nvlink(?=\)|$)"), "xgmi"),
    (re.compile(r"\bNV[0-9]+\b"), "XGMI"),
    (re.compile(r"\bCUDA, NCCL and allocator"), "ROCm, RCCL and allocator"),
)
"""What is said of NVIDIA's GPUs, and of AMD's, whose links are kinds of "nvlink" in the model."""

_USERS_OWN = ("question", "setting")


def has_processes(topology: Topology) -> bool:
    """Whether ranks are processes on CPUs."""
    return topology.gpu.generation == "cpu"


def _terms_of(topology: Topology) -> _Terms:
    if has_processes(topology):
        return _PROCESSES
    return _AMD if topology.gpu.generation.startswith("cdna") else ()


def in_words_of(topology: Topology, text: str) -> str:
    """A text as it is for NVIDIA's GPUs, in words of these ranks."""
    return _in_terms(text, _terms_of(topology))


def _in_terms(text: str, terms: _Terms) -> str:
    for pattern, instead in terms:
        text = pattern.sub(instead, text)
    return text


def count_ranks(topology: Topology) -> str:
    """Say how many ranks there are: "1,024 GPUs", "1 process"."""
    count = len(topology.ranks)
    singular, plural = ("process", "processes") if has_processes(topology) else ("GPU", "GPUs")
    return f"{count:,} {singular if count == 1 else plural}"


def for_ranks_of(topology: Topology, blocks: Iterable[Block | None]) -> list[Block]:
    """Blocks as they are for NVIDIA's GPUs, in words of others; what users wrote stays."""
    present, terms = [block for block in blocks if block is not None], _terms_of(topology)
    return [_renamed(block, terms) for block in present] if terms else present


def _renamed(value: Any, terms: _Terms) -> Any:
    """Rename in every text of a block and of what is in it, HTML and figures too."""
    if isinstance(value, str):
        return _in_terms(value, terms)
    if isinstance(value, Figure):
        import plotly.graph_objects as go

        drawn = go.Figure(_renamed(value.figure.to_plotly_json(), terms))
        return Figure(drawn, value.name, _renamed(value.description, terms))
    own = isinstance(value, Paragraph) and value.role in _USERS_OWN
    if not own and hasattr(value, "__dataclass_fields__"):
        return replace(
            value, **{f.name: _renamed(getattr(value, f.name), terms) for f in fields(value)}
        )
    if isinstance(value, dict):
        return {_renamed(name, terms): _renamed(inner, terms) for name, inner in value.items()}
    return [_renamed(each, terms) for each in value] if isinstance(value, list | tuple) else value
