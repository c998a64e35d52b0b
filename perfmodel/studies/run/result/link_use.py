"""Traffic over links during one step, link by link; made when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray


class LinkEnds(NamedTuple):
    """A directed link by its ends; `devices`: what kinds of device they are."""

    src: str
    dst: str
    kind: str
    devices: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.src} -> {self.dst} ({self.kind})"


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Traffic over one directed link during one step.

    `nbytes` are bytes of payload. `utilisation`, 0 to 1, is the share of the step in which the link
    was busy, with payload, with what protocols add, or with what a slow protocol leaves unused.
    """

    src: str
    dst: str
    kind: str
    nbytes: float
    utilisation: float


class LinkUses(Sequence[LinkUse]):
    """Traffic over some links; a cluster has hundreds of thousands, of which few are shown.

    Parameters
    ----------
    ends : sequence of (str, str)
        Of all links of the machine.
    kinds : sequence of str
        Of these links.
    links : ndarray of int
        Their numbers.
    nbytes, utilisation : ndarray of float
        Of these links; see `LinkUse`.
    """

    def __init__(
        self,
        ends: Sequence[tuple[str, str]],
        kinds: Sequence[str],
        links: NDArray[np.int64],
        nbytes: NDArray[np.float64],
        utilisation: NDArray[np.float64],
    ) -> None:
        self._ends, self._kinds, self._links = ends, kinds, links
        self._nbytes, self._utilisation = nbytes, utilisation

    def __len__(self) -> int:
        return len(self._links)

    @overload
    def __getitem__(self, index: int) -> LinkUse: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LinkUse, ...]: ...
    def __getitem__(self, index: int | slice) -> LinkUse | tuple[LinkUse, ...]:
        if isinstance(index, slice):
            return tuple(map(self._use, range(*index.indices(len(self)))))
        return self._use(index)

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same links and traffic."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def _use(self, at: int) -> LinkUse:
        ends, nbytes = self._ends[int(self._links[at])], float(self._nbytes[at])
        return LinkUse(*ends, self._kinds[at], nbytes, float(self._utilisation[at]))
