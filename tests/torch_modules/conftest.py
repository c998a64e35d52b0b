"""Modules that need torch, which may not be installed."""

collect_ignore_glob = ["small_modules.py"]
