"""Recorded trainings beside predicted ones: `datasets.datasets_in`."""
