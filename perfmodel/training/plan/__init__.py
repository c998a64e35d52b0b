"""Tasks of a step: the type, what writes them, and forward and backward in them."""
