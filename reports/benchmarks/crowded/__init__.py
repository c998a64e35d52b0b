"""Commands in which much happens at once: see README.md."""
