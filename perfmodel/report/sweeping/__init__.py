"""Results of a sweep: a page with charts, and the terminal."""
