"""`search.choose_mixture`: the quickest mixture that fits, for scenarios with strategy ``auto``."""
