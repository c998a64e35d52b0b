"""A user's own model or layer times from CSV and YAML; see `load_workload`."""
