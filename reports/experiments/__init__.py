"""Experiments with real programs beside their predictions."""
