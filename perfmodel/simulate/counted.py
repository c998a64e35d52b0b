"""Bytes over each directed link: what they make a link busy with, and what of it is payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.library.carried import Carried
from perfmodel.simulate.estimate import add_traffic

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Routes(Protocol):
    """Which links each edge crosses: those of edge e are ``arcs[pointers[e]:pointers[e + 1]]``."""

    @property
    def arcs(self) -> Ints:
        """Links, edge by edge."""
        ...

    @property
    def pointers(self) -> Ints:
        """Where each edge's links begin; shape (edges + 1,)."""
        ...


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes over each directed link until now.

    Parameters
    ----------
    wire_bytes : ndarray of float, shape (arcs,)
        Over a link's bandwidth this is how long it is busy: flags and headers of a protocol count,
        and what a link could have carried while staging or a slow protocol held it up.
    payload_bytes : ndarray of float, shape (arcs,)
        What users sent: 2 (N - 1) / N of an all-reduce in a ring of N.
    """

    wire_bytes: Floats
    payload_bytes: Floats


def nothing_counted(arcs: int) -> Counted:
    """Return counts of zero for so many links."""
    return Counted(np.zeros(arcs), np.zeros(arcs))


def both_counted(one: Counted, other: Counted) -> Counted:
    """Return the sum of two counts."""
    return Counted(one.wire_bytes + other.wire_bytes, one.payload_bytes + other.payload_bytes)


def count_collective(counted: Counted, way: Carried, times: int = 1) -> None:
    """Count a whole collective, or so many like it."""
    add_traffic(counted.wire_bytes, way, times)
    add_traffic(counted.payload_bytes, way, times, payload=True)


def count_stream(counted: Counted, arcs: Ints, nbytes: float) -> None:
    """Count bytes of somebody else, who adds nothing to them, on all links of a route."""
    np.add.at(counted.wire_bytes, arcs, nbytes)
    np.add.at(counted.payload_bytes, arcs, nbytes)


def count_elsewhere(
    counted: Counted, old: Routes, new: Routes, wire_bytes: Floats, wire_share: Floats
) -> None:
    """Count what edges have still to send on the links that will carry it, and not on others.

    Parameters
    ----------
    counted : Counted
    old, new : Routes
        Of the same edges.
    wire_bytes : ndarray of float, shape (edges,)
        Still to be sent.
    wire_share : ndarray of float, shape (edges,)
        Bytes on the wire per byte of payload.
    """
    if np.array_equal(old.arcs, new.arcs):
        return
    for routes, sign in ((old, -1.0), (new, 1.0)):
        crossed = np.diff(routes.pointers)
        np.add.at(counted.wire_bytes, routes.arcs, np.repeat(sign * wire_bytes, crossed))
        payload = np.repeat(sign * wire_bytes / wire_share, crossed)
        np.add.at(counted.payload_bytes, routes.arcs, payload)
