"""Activation functions: as one kernel each, or in single operations where a library has none.

Counted in transformers 5.23 ``activations.py`` (saved-tensor hooks on PyTorch 2.13 agree).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ActivationFunction:
    """Work of an activation function.

    `passes`: over its elements, forward.
    `kernels`: launched by forward.
    `saved`: elements kept for each of its input, with its result, which the next map reads.
    `wide`: those of them that autocast has in fp32.
    """

    passes: int = 2
    kernels: int = 1
    saved: int = 2
    wide: int = 0

    @property
    def keeps_result(self) -> bool:
        """Whether its backward reads its result, so that it is kept even if dropout follows."""
        return self.saved == 1

    @property
    def narrow(self) -> int:
        """Those kept at the precision of the compute."""
        return self.saved - self.wide


ONE_KERNEL = ActivationFunction()
"""Keeps its input; the next map keeps its result."""

ACTIVATIONS: Mapping[str, ActivationFunction] = {
    **dict.fromkeys(("gelu", "gelu_pytorch_tanh", "silu", "swish"), ONE_KERNEL),
    # its backward reads the result alone
    "relu": ActivationFunction(saved=1),
    "relu2": ActivationFunction(passes=4, kernels=2, saved=2),
    # scaled, sigmoid, product: keeps the sigmoid as well
    "quick_gelu": ActivationFunction(passes=7, kernels=3, saved=3),
    # cubed, scaled, added, scaled, tanh, plus 1, halved, product: keeps half of its input, the
    # tanh, and that plus 1 as well; autocast runs powers, and what follows from them, in fp32
    "gelu_new": ActivationFunction(passes=18, kernels=8, saved=5, wide=3),
}
"""By Hugging Face's name."""
