"""Recorded sweeps of collectives and the machines that made them: `read.read_sweeps`."""
