"""Modules that run in processes of their own, some of them with other libraries installed."""

collect_ignore_glob = ["*_cases.py", "*worker.py", "record_*.py", "recording_group.py", "toy.py"]
