"""Which buckets: all partitions that a cap can make, and the best list of caps.

`tuning.tune_scenario` is the way in; `compromise.tune_all` finds one setting for several.
"""
