"""Traces of real training: read, summed up, rebuilt as a scenario, replayed on any machine."""
