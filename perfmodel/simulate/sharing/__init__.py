"""How edges share links max-min fairly; see `max_min.max_min_rates`."""
