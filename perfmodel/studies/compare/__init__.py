"""Scenarios side by side: what differs, by how much, and what of it is whose."""

from perfmodel.studies.compare.compare import compare
from perfmodel.studies.compare.model import Change, Comparison, Field, Imagined, Side, Versus

__all__ = ["Change", "Comparison", "Field", "Imagined", "Side", "Versus", "compare"]
