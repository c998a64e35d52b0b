"""The commands of ``perfmodel``: no logic, nothing heavy at import; `main` runs them."""

from perfmodel.cli.app import main

__all__ = ["main"]
