"""Times of layers and of steps, measured where the module is."""
