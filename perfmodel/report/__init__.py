"""Results for people: one self-contained page, tables and figures."""
