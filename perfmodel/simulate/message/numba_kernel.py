"""The message kernel compiled by numba; where numba is missing the interpreter runs it.

The source is the interpreter's, but for the queue of events, which is a heap in an array.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections import namedtuple
from collections.abc import Callable
from functools import cache
from typing import Any

from perfmodel.collectives.timing import compiled_loops
from perfmodel.simulate.message import event_loop, link_sharing, records
from perfmodel.simulate.message.records import INF, LISTS, State

Arrays: Any = namedtuple("Arrays", LISTS)  # type: ignore[misc]  # noqa: PYI024
"""A `State` as a named tuple, which numba can compile for."""

HELPERS: tuple[Callable[..., object], ...] = tuple(
    function
    for module in (event_loop, link_sharing)
    for function in vars(module).values()
    if inspect.isfunction(function) and function.__module__ == module.__name__
)
"""All functions of the kernel but those of the queue of events."""


@cache
def compiled() -> Callable[[Any, float], int]:
    """Return `event_loop.advance`, compiled; from numba's cache on disk after the first time.

    Raises `ImportError`: numba is missing, or does not work with this NumPy.
    """
    from numba import njit  # takes half a second to import, with what it loads
    from numba.core.cpu import CPUTargetOptions
    from numba.extending import overload, register_jitable

    for function in (*HELPERS, is_before, move_event):
        register_jitable(forceinline=True)(function)
    for plain, for_types in (  # functions of argument types, which return the one to compile
        (records.push, lambda s, at_s, code: push),  # noqa: ARG005
        (records.pop, lambda s: pop),  # noqa: ARG005
        (records.first_s, lambda s: first_s),  # noqa: ARG005
        (records.count_events, lambda s: count_events),  # noqa: ARG005
    ):
        overload(plain, jit_options={"forceinline": True}, strict=False)(for_types)
    sources = _digest()

    def advance(s: Any, until_s: float) -> int:
        _ = sources  # numba's cache knows a function by what it closes over, and not by its callees
        return event_loop.advance(s, until_s)

    # Nothing is allocated: counting references to arrays took half of the time. An option with an
    # underscore may be gone in a later numba.
    uncounted: dict[str, Any] = {"_nrt": False} if hasattr(CPUTargetOptions, "_nrt") else {}
    fast: Callable[[Any, float], int] = njit(cache=True, error_model="numpy", **uncounted)(advance)
    return fast


@cache
def is_on_disk() -> bool:
    """Whether numba compiled the kernel before, on this machine and for this Python."""
    return compiled_loops.is_on_disk(compiled())


def _digest() -> str:
    """Hash the source of the kernel."""
    modules = (event_loop, link_sharing, records, sys.modules[__name__])
    texts = [inspect.getsource(module) for module in modules]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def push(s: State, at_s: float, code: int) -> None:
    """Add an event, behind those of the same time."""
    clock = s.clock[0]
    clock.sequence += 1
    position = clock.queued
    clock.queued += 1
    while position > 0:
        parent = (position - 1) // 2
        if s.events[parent].at_s <= at_s:
            break
        move_event(s, parent, position)
        position = parent
    event = s.events[position]
    event.at_s = at_s
    event.order = clock.sequence
    event.code = code


def pop(s: State) -> int:
    """Remove the first event; return its code."""
    first: int = s.events[0].code
    clock = s.clock[0]
    clock.queued -= 1
    last = clock.queued
    position = 0
    while 2 * position + 1 < last:
        child = 2 * position + 1
        if child + 1 < last and is_before(s, child + 1, child):
            child += 1
        if is_before(s, last, child):
            break
        move_event(s, child, position)
        position = child
    move_event(s, last, position)
    return first


def is_before(s: State, a: int, b: int) -> bool:
    """Whether the event at position `a` comes before that at `b`."""
    first, second = s.events[a], s.events[b]
    is_pushed_first = first.at_s == second.at_s and first.order < second.order
    return bool(first.at_s < second.at_s or is_pushed_first)


def move_event(s: State, source: int, target: int) -> None:
    """Copy the event at position `source` to `target`."""
    event, copy = s.events[source], s.events[target]
    copy.at_s = event.at_s
    copy.order = event.order
    copy.code = event.code


def first_s(s: State) -> float:
    """Return when the first event is due, infinity if there is none; seconds."""
    return float(s.events[0].at_s) if s.clock[0].queued > 0 else INF


def count_events(s: State) -> int:
    """Number of events, outdated ones included."""
    return int(s.clock[0].queued)
