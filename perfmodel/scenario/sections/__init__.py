"""Sections of the scenario file, one module per part of the YAML; see `Scenario`."""
