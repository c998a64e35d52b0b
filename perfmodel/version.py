"""Version of the package."""

__version__ = "0.20.0"
