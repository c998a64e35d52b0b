"""Tables of a sweep and of collectives: terminal, notebook, figure, page."""
