"""Recorded sweeps of collectives: `read.read_sweeps`, and `match.match` for their machines."""
