"""Modules that run in processes of their own, with torch."""

collect_ignore_glob = ["executed_training.py", "gloo_training.py"]
