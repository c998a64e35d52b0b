"""Sections that other questions than `run` read: variants, candidates, factors."""
