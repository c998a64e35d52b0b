"""Types of the fields of configurations, and what all families share.

Bounds are some times what the largest models have: a million layers would fill any memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from perfmodel.errors import Fault, InputError
from perfmodel.files import FileModel

MOST_LAYERS, MOST_WIDTH, MOST_WORDS, MOST_EXPERTS = 2_000, 2_000_000, 20_000_000, 20_000
MOST_TOKENS = 2**31 - 1

Layers = Annotated[int, Field(strict=True, gt=0, le=MOST_LAYERS)]
Width = Annotated[int, Field(strict=True, gt=0, le=MOST_WIDTH)]
Words = Annotated[int, Field(strict=True, gt=0, le=MOST_WORDS)]
Experts = Annotated[int, Field(strict=True, gt=0, le=MOST_EXPERTS)]
Tokens = Annotated[int, Field(strict=True, gt=0, le=MOST_TOKENS)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Flag = Annotated[bool, Field(strict=True)]
Gate = Literal["silu", "swish", "gelu", "gelu_pytorch_tanh"]
Function = Literal[
    "gelu", "gelu_pytorch_tanh", "silu", "swish", "relu", "relu2", "quick_gelu", "gelu_new"
]
"""Activation functions whose work is known."""
AttentionKind = Literal["full_attention", "sliding_attention"]

LONGEST_DEFAULT = 4096
"""Tokens of a sample, where nobody says how many and positions are rotary: most are pre-trained
with as many or twice, whatever the most that their positions allow."""


class HubConfig(FileModel):
    """What a ``config.json`` may state; other fields do not change a training step.

    Defaults of families are those of the configuration classes of transformers 5.23
    (``models/FAMILY/configuration_FAMILY.py``).
    """

    model_config = ConfigDict(extra="ignore")

    model_type: str = ""
    architectures: tuple[str, ...] | None = None


Finding = tuple[str, str, str]
"""Field, what was found, what is allowed."""


def raise_findings(findings: Iterator[Finding]) -> None:
    """Raise InputError with all of them, if there are any."""
    faults = [Fault(*finding) for finding in findings]
    if faults:
        raise InputError(faults)


def head_of(config: HubConfig, allowed: tuple[str, ...]) -> str:
    """Class of the model: the first of `architectures`, or the first that is allowed.

    Raises `InputError`: none of those allowed.
    """
    head = (config.architectures or allowed)[0]
    if head not in allowed:
        names = " or ".join(map(repr, allowed))
        raise InputError(Fault("architectures", repr(head), f"{names}, which are known to the zoo"))
    return head


def divides(number: int, by: int, field: str, what: str) -> Iterator[Finding]:
    """Find a number that another does not divide."""
    if number % by:
        yield field, str(by), f"a divisor of {number}, {what}"


def is_on(rate: float) -> bool:
    """Whether some of something is dropped out."""
    return rate > 0


def nested(content: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a section of a configuration; itself where it has none."""
    section = content.get(key)
    return section if isinstance(section, dict) else content
