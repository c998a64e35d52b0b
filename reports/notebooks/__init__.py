"""Notebooks with their outputs, and what executes them without Jupyter."""
