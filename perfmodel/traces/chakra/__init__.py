"""Execution traces of MLCommons Chakra, which ASTRA-sim replays: from a plan, and into one."""
