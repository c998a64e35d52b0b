"""Predict recorded sweeps and trainings by every mode: `run.at_once`."""
