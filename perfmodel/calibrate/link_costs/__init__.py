"""link_costs."""
