"""Advice on a scenario: terminal, figure, page."""
