"""from_text."""
