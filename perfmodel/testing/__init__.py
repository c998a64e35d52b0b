"""Oracles and checks for authors of algorithms and strategies, shared by the tests and users."""
