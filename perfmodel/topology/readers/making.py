"""A host in the making: its draft, the names of devices, where each edge is from."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.topology.draft import Draft
from perfmodel.topology.readers.complete import Known


@dataclass
class Making:
    """A host in the making.

    Parameters
    ----------
    draft : Draft
    known : Known
    file : str
    names : dict of int to str
        Name of each device, by its identity.
    beside : dict of int to str
        Comment of each edge, by its position.
    notes : list of str
    """

    draft: Draft
    known: Known
    file: str
    names: dict[int, str] = field(default_factory=dict)
    beside: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def join(self, src: str, dst: str, link: str, comment: str = "", lanes: int = 0) -> None:
        """Add an edge and where it is from."""
        if comment:
            self.beside[len(self.draft.edges)] = comment
        self.draft.join(src, dst, link, **({"lanes": lanes} if lanes else {}))
