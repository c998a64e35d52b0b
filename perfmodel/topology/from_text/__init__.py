"""Hosts from free text about hardware; `describe.describe` puts one together."""
