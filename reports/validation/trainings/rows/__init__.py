"""Rows of published training tables: `parse.parse_row`."""
