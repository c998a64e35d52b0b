"""Compare scenarios, and attribute the differences of their steps: `compare`."""

from perfmodel.studies.compare.compare import compare
from perfmodel.studies.compare.model import Change, Comparison, Field, Imagined, Side, Versus

__all__ = ["Change", "Comparison", "Field", "Imagined", "Side", "Versus", "compare"]
