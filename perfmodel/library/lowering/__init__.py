"""A collective laid on links, with what a protocol adds; `lower.lower_collective`."""
