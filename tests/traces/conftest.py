"""A module that runs in processes of its own, with torch."""

collect_ignore_glob = ["gloo_training.py"]
