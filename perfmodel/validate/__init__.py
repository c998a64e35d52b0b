"""Predicted times against recorded ones: `run.validate`."""
