"""Resolve the sections of a scenario into machine, job, placement and disturbances."""
