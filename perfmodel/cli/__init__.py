"""Commands of the ``perfmodel`` script; no logic in them, and nothing heavy at import."""

from perfmodel.cli.app import app, main

__all__ = ["app", "main"]
