"""Predicted versus measured: recorded sweeps and trainings, and how far predictions are off."""
