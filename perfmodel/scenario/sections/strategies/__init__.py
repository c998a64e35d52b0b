"""Strategies of a scenario, one class for each `kind`."""
