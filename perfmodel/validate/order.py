"""In which order gradients that come from one function of autograd are accumulated.

The engine keeps what is to be done in a ``std::priority_queue`` by the number of each function;
accumulations of gradients all have the same, highest number (torch 2.13,
``torch/csrc/autograd/engine.cpp`` and ``accumulate_grad.cpp``). Which of equals comes first is what
the heap of the C++ library makes of them (libstdc++, ``bits/stl_heap.h``): up to three in the order
of the function's inputs, more in another.
"""

from __future__ import annotations

from functools import cache


@cache
def accumulation_order(tensors: int, *, leaf: bool = False) -> tuple[int, ...]:
    """Return in which order the gradients of a function's tensors are accumulated.

    The function's first input leads on to the function before it, as where layers that emulate
    others follow one another; or it is a leaf itself, as in the first layer.

    Examples
    --------
    >>> accumulation_order(3)
    (0, 1, 2)
    >>> accumulation_order(6)
    (0, 1, 4, 5, 3, 2)
    >>> accumulation_order(6, leaf=True)
    (1, 4, 5, 3, 0, 2)
    """
    heap: list[tuple[int, int]] = []
    for item in ((int(leaf), -1), *((1, number) for number in range(tensors))):
        heap.append(item)
        _raise(heap, len(heap) - 1, 0)
    taken = [_taken(heap)[1] for _ in range(tensors + 1)]
    return tuple(number for number in taken if number >= 0)


def _raise(heap: list[tuple[int, int]], hole: int, top: int) -> None:
    """Move an item up for as long as what is above it comes later (``__push_heap``)."""
    value = heap[hole]
    while hole > top and heap[(hole - 1) // 2][0] < value[0]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = value


def _taken(heap: list[tuple[int, int]]) -> tuple[int, int]:
    """Take the first item out (``pop_heap``: the last one fills the hole from below)."""
    first, last = heap[0], heap.pop()
    if not heap:
        return first
    hole, child = 0, 2
    while child < len(heap):
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole, child = child, 2 * (child + 1)
    if child == len(heap):
        heap[hole] = heap[child - 1]
        hole = child - 1
    heap[hole] = last
    _raise(heap, hole, 0)
    return first
