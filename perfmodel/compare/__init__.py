"""Scenarios side by side: what differs, by how much, and what of it is whose."""

from perfmodel.compare.compared import compare
from perfmodel.compare.model import Change, Comparison, Field, Imagined, Side, Versus

__all__ = ["Change", "Comparison", "Field", "Imagined", "Side", "Versus", "compare"]
