"""A result as people read it: one HTML page, terminal tables, and the JSON contract."""
