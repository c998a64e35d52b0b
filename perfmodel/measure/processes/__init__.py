"""Backends ``gloo`` and ``nccl``: a process per rank; see `run_processes`."""
