"""Families of Hugging Face: what their configurations state, and the zoo's models of it."""
