"""Compare scenarios, and attribute the differences of their steps: `compare`."""

from perfmodel.studies.compare.compare import compare
from perfmodel.studies.compare.model import Change, Comparison

__all__ = ["Change", "Comparison", "compare"]
