"""Modules that need torch, which may not be installed."""

collect_ignore_glob = ["saved_tensors.py"]
