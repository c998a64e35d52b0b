"""Types of the fields of configurations, and what all families share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from perfmodel.errors import Fault, InputError
from perfmodel.files import FileModel
from perfmodel.scenario.sections.model import MOST_EXPERTS, MOST_LAYERS, MOST_WIDTH, MOST_WORDS
from perfmodel.workload.zoo.decoders.experts.expert_sizes import RoutedShape

MOST_TOKENS = 2**31 - 1

Layers = Annotated[int, Field(strict=True, gt=0, le=MOST_LAYERS)]
Width = Annotated[int, Field(strict=True, gt=0, le=MOST_WIDTH)]
Words = Annotated[int, Field(strict=True, gt=0, le=MOST_WORDS)]
Experts = Annotated[int, Field(strict=True, gt=0, le=MOST_EXPERTS)]
Tokens = Annotated[int, Field(strict=True, gt=0, le=MOST_TOKENS)]
Window = Annotated[int, Field(strict=True, ge=0, le=MOST_TOKENS)]
"""Tokens that a query sees at most; zero, as transformers writes it, is as none."""
Rate = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Nothing = Annotated[float, Field(ge=0, le=0)]
"""Rates of what the zoo's models do not leave out."""
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


class RopeParameters(HubConfig):
    """What newer files state of rotary positions."""

    partial_rotary_factor: Share | None = None


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
        raise InputError(
            Fault("architectures", repr(head), f"{names}; `perfmodel capture` takes others")
        )
    return head


def divides(number: int, by: int, field: str, meaning: str) -> Iterator[Finding]:
    """Find a number that another does not divide."""
    if number % by:
        yield field, str(by), f"a divisor of {number}, {meaning}"


def heads_divide(width: int, heads: int, section: str = "") -> Iterator[Finding]:
    """Find heads that do not divide the width; `section`: of the file, with a point after it."""
    return divides(width, heads, f"{section}num_attention_heads", "the hidden size")


def choice_findings(
    routed: RoutedShape, top_k: str, groups: str, top_groups: str
) -> Iterator[Finding]:
    """Find tokens that take more experts than they may, and groups that do not divide the experts.

    `top_k`, `groups`, `top_groups`: the fields that state them.
    """
    experts, allowed = routed.experts, "the experts of a layer"
    if experts % routed.groups:
        yield groups, str(routed.groups), f"a divisor of the {experts} experts"
    elif routed.top_groups > routed.groups:
        yield top_groups, str(routed.top_groups), f"at most the {routed.groups} groups"
    elif routed.groups > 1:
        experts = experts // routed.groups * routed.top_groups
        allowed = f"the experts of {routed.top_groups} of {routed.groups} groups"
    if routed.top_k > experts:
        yield top_k, str(routed.top_k), f"at most {experts}, {allowed}"


def rotary_share(rope: RopeParameters | None, *older: float | None, usual: float) -> float:
    """Share of a head that positions turn; `older`: where files before had it, first to last."""
    shares = (rope.partial_rotary_factor if rope else None, *older)
    return next((share for share in shares if share is not None), usual)


def is_on(rate: float) -> bool:
    """Whether some of something is dropped out."""
    return rate > 0
