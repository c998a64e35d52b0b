"""Compare scenarios, and attribute the differences of their steps: `compare`."""

from perfmodel.studies.compare.compare import compare
from perfmodel.studies.compare.model import (
    Change,
    Comparison,
    Field,
    Side,
    SideDifference,
    WhatIfResult,
)

__all__ = ["Change", "Comparison", "Field", "Side", "SideDifference", "WhatIfResult", "compare"]
