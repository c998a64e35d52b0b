"""Times of a collective by size: a page with charts."""
