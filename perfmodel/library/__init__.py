"""How communication libraries carry a schedule: rings over real routes, protocols, overheads."""
