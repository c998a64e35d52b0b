"""Numbers that several strategies are set by."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from perfmodel.files import Count

MOST_MICRO_STEPS = 4096
"""Each is simulated: some ms."""

MicroSteps = Annotated[Count, Field(le=MOST_MICRO_STEPS)]
