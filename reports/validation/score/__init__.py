"""Errors and interval coverage of predictions: `scores.score`."""
