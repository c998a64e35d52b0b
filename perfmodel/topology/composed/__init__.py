"""Hosts put together: a template with changes, parts, or words; `load.load_node` reads any."""
