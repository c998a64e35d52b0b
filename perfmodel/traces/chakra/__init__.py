"""Execution traces of MLCommons Chakra, which ASTRA-sim replays: written from a plan, read into one."""
