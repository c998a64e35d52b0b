"""The message kernel compiled by numba, where numba is installed (extra "fast").

It is the kernel's own source; only its queue of events is another one, a heap in an array.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from perfmodel.simulate.message import event_heap, event_loop, link_sharing, records
from perfmodel.simulate.message.records import INF, State
from perfmodel.simulate.sharing import max_min_loops

Arrays: Any = namedtuple("Arrays", [field.name for field in fields(State)])  # type: ignore[misc]  # noqa: PYI024
"""A `State` as numba wants it."""

HELPERS = (
    event_loop.advance, event_loop.begin, event_loop.end, event_loop.can_send, event_loop.take, event_loop.try_edge,
    event_loop.finish, event_loop.land, event_loop.pass_gate,
    link_sharing.enter, link_sharing.leave, link_sharing.is_short, link_sharing.touch, link_sharing.set_rate, link_sharing.solve,
    link_sharing.connected, link_sharing.fill, link_sharing.keep_short, link_sharing.freeze_limited,
    link_sharing.freeze_full, link_sharing.freeze,
)  # fmt: skip


@cache
def compiled() -> Callable[[Any, float], int]:
    """Return `kernel.advance`, compiled; from numba's cache on disk after the first time.

    Raises
    ------
    ImportError
        numba is missing, or does not work with this NumPy.
    """
    from numba import njit  # takes 0.9 s to import
    from numba.extending import overload, register_jitable

    for function in (*HELPERS, is_before, move):
        register_jitable(function)
    for plain, other in (
        (event_heap.push, push), (event_heap.pop, pop), (event_heap.first_s, first_s),
        (event_heap.queued, queued),
    ):  # fmt: skip
        overload(plain, strict=False)(_instead(other))
    sources = _digest()

    def advance(s: Any, until_s: float) -> int:
        _ = sources  # numba's cache knows a function by what it closes over, and not by its callees
        return event_loop.advance(s, until_s)

    fast: Callable[[Any, float], int] = njit(cache=True)(advance)
    return fast


@cache
def compiled_filling() -> Callable[[Any, Any, Any, Any], Any]:
    """Return `filling.filled`, compiled.

    Raises
    ------
    ImportError
        As above.
    """
    from numba import njit  # as above
    from numba.extending import register_jitable

    register_jitable(max_min_loops.stopped)
    fast: Callable[[Any, Any, Any, Any], Any] = njit(cache=True)(max_min_loops.filled)
    return fast


def _digest() -> str:
    """Tell one state of the kernel's source from another."""
    modules = (event_heap, event_loop, link_sharing, records, sys.modules[__name__])
    texts = [inspect.getsource(module) for module in modules]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _instead(function: Callable[..., Any]) -> Callable[..., Any]:
    """What numba asks for: a function of the argument types that returns the one to compile."""

    def for_state(s: Any) -> Callable[..., Any]:  # noqa: ARG001
        return function

    def for_event(s: Any, at_s: Any, what: Any) -> Callable[..., Any]:  # noqa: ARG001
        return function

    return for_state if function.__code__.co_argcount == 1 else for_event


def push(s: State, at_s: float, what: int) -> None:
    """Add an event, behind those of the same time."""
    clock = s.clock[0]
    clock.caused += 1
    place = clock.queued
    clock.queued += 1
    while place > 0:
        parent = (place - 1) // 2
        if s.events[parent].at_s <= at_s:
            break
        move(s, parent, place)
        place = parent
    event = s.events[place]
    event.at_s = at_s
    event.order = clock.caused
    event.what = what


def pop(s: State) -> int:
    """Take the first event out; return its number."""
    first: int = s.events[0].what
    clock = s.clock[0]
    clock.queued -= 1
    last = clock.queued
    place = 0
    while 2 * place + 1 < last:
        child = 2 * place + 1
        if child + 1 < last and is_before(s, child + 1, child):
            child += 1
        if is_before(s, last, child):
            break
        move(s, child, place)
        place = child
    move(s, last, place)
    return first


def is_before(s: State, place: int, other: int) -> bool:
    """Whether the event at a place comes before that at another."""
    one, two = s.events[place], s.events[other]
    if one.at_s == two.at_s:
        sooner: bool = one.order < two.order
        return sooner
    before: bool = one.at_s < two.at_s
    return before


def move(s: State, place: int, to: int) -> None:
    """Write the event at a place to another."""
    one, two = s.events[place], s.events[to]
    two.at_s = one.at_s
    two.order = one.order
    two.what = one.what


def first_s(s: State) -> float:
    """Time of the first event, infinite if there is none."""
    first: float = s.events[0].at_s if s.clock[0].queued > 0 else INF
    return first


def queued(s: State) -> int:
    """Number of events, outdated ones included."""
    size: int = s.clock[0].queued
    return size
