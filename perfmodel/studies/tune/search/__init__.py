"""The best list of caps: `exact.search_by_surrogate` or `surrogate_search`."""
