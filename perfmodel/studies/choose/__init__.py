"""`search.choose_layout`: the quickest layout that fits, for scenarios with strategy ``auto``."""
