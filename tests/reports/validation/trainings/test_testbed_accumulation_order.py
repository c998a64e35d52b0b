"""The order in which autograd accumulates gradients of one function."""

from __future__ import annotations

import pytest

from reports.validation.trainings.testbed import accumulation_order

SAID = {
    1: [0],
    2: [0, 1],
    3: [0, 1, 2],
    4: [0, 1, 3, 2],
    5: [0, 1, 4, 3, 2],
    6: [0, 1, 4, 5, 3, 2],
    7: [0, 1, 5, 4, 2, 6, 3],
    8: [0, 1, 5, 7, 4, 2, 6, 3],
    9: [0, 1, 5, 8, 7, 4, 2, 6, 3],
    13: [0, 1, 5, 12, 11, 10, 9, 8, 7, 4, 2, 6, 3],
}
"""What hooks said with torch 2.13 (Linux, x86-64)."""
SAID_OF_LEAVES = {
    1: [0],
    2: [0, 1],
    3: [1, 0, 2],
    4: [1, 3, 0, 2],
    5: [1, 4, 3, 0, 2],
    6: [1, 4, 5, 3, 0, 2],
    7: [1, 5, 4, 6, 3, 0, 2],
    8: [1, 5, 7, 4, 6, 3, 0, 2],
    9: [1, 5, 8, 7, 4, 6, 3, 0, 2],
    13: [1, 5, 12, 11, 10, 9, 8, 7, 4, 6, 3, 0, 2],
}
"""The same where the function's first input is a leaf."""


@pytest.mark.parametrize("tensors", SAID)
def test_as_torch_said(tensors: int) -> None:
    assert list(accumulation_order(tensors)) == SAID[tensors]
    assert list(accumulation_order(tensors, leaf=True)) == SAID_OF_LEAVES[tensors]


@pytest.mark.parametrize("leaf", [False, True])
def test_as_torch_says_here(*, leaf: bool) -> None:
    torch = pytest.importorskip("torch")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context, value, gradients, *weights):
            context.gradients = gradients
            return value + 0

        @staticmethod
        def backward(context, gradient):
            return (gradient, None, *context.gradients)

    order: list[int] = []
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(6)]
    for number, weight in enumerate(weights):
        weight.register_post_accumulate_grad_hook(lambda _, number=number: order.append(number))
    first = torch.zeros(1, requires_grad=True)
    if not leaf:
        first = Function.apply(first, ())
    Function.apply(first, tuple(torch.zeros(1) for _ in weights), *weights).sum().backward()
    assert order == list(accumulation_order(6, leaf=leaf))
