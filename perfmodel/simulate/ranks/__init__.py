"""Ranks that differ: jitter, and a recurrence over them; see `rank_vectors.simulate_ranks`."""
