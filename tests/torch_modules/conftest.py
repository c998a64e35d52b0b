"""Modules that run in processes of their own, or need torch, which may not be installed."""

collect_ignore_glob = ["ddp_worker.py", "small_modules.py"]
