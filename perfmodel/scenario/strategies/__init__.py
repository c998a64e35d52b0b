"""Strategies as a scenario states them and as plans are built from them, one class each."""
