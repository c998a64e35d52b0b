"""Models that a user states by their sizes: a shape, a ``config.json``, Megatron's arguments."""
