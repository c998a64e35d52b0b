"""`run.tune_scenario`: the buckets that make a step shortest, by search over caps."""
