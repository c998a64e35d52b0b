"""How the quickest mixture was found, and the ten best with what their steps are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Block, Paragraph, Table
from perfmodel.studies.run.result.model import MixtureSearch
from perfmodel.units import format_bytes

_TITLES = {
    "tensor": "tensor calls",
    "context": "context calls",
    "expert": "expert calls",
    "data": "data parallel",
    "pipeline": "messages",
    "bubble": "waiting",
}


def describe_search(search: MixtureSearch) -> tuple[str, ...]:
    """The answer in words, how many mixtures there were, and whether a better one may be left."""
    counts = (
        f"{search.listed:,} mixtures: {search.impossible:,} impossible, {search.too_big:,} too "
        f"big, {search.bounded:,} left out by their lower bounds, {search.simulated:,} simulated."
    )
    if search.unproven > 0:
        proof = (
            "The search ended at strategy.simulate: a mixture that was left out may be up to "
            f"{100 * search.unproven:.2g} % quicker."
        )
    else:
        proof = "None that was left out can be quicker."
    return f"The quickest that fits: {search.winner.text}.", counts, proof


def best_table(search: MixtureSearch) -> Table:
    """The ten best: step, memory, compute, exposed communication by kind, what else waits.

    That is the bubble of a pipeline, and the host where kernels are short.
    """
    kinds = [
        kind
        for kind in search.winner.parts_s
        if kind in ("compute", "bubble") or any(each.parts_s[kind] > 0 for each in search.best)
    ]
    rows = [
        [
            quantities.duration(each.step_time_s),
            format_bytes(each.memory_bytes),
            *(quantities.duration(each.parts_s[kind]) for kind in kinds),
            each.text,
        ]
        for each in search.best
    ]
    titles = (f">{_TITLES.get(kind, kind)}" for kind in kinds)
    return Table([">step", ">memory", *titles, "mixture"], rows, ruled=False)


def paste_section(changes: Mapping[str, Any]) -> str:
    """Sections of a scenario that are this mixture, as YAML in one line each.

    Examples
    --------
    >>> paste_section({"strategy": {"kind": "ddp"}, "parallel.tensor": 8})
    'strategy: {"kind": "ddp"}; parallel: {"tensor": 8}'
    """
    import json

    sections: dict[str, Any] = {}
    for field, value in changes.items():
        name, _, part = field.partition(".")
        if part:
            sections.setdefault(name, {})[part] = value
        else:
            sections[name] = value
    return "; ".join(f"{name}: {json.dumps(value)}" for name, value in sections.items())


def search_blocks(search: MixtureSearch | None) -> list[Block]:
    """All of it; nothing where the scenario left no mixture open."""
    if search is None:
        return []
    paste = f"As sections of a scenario: {paste_section(search.winner.changes)}"
    return [
        *(Paragraph(line) for line in describe_search(search)),
        best_table(search),
        Paragraph(paste),
    ]
