"""Fit the costs of links and steps of one machine to its own measurements: `fit.fit`."""
