"""Modules that run in processes of their own, with torch."""

collect_ignore_glob = ["gloo_training.py"]
