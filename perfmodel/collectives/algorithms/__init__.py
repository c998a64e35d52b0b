"""Algorithms, one family per file; each function plans one schedule (`catalog.make`)."""
