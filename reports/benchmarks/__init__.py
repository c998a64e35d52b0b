"""How fast perfmodel is, and how its cost grows."""
