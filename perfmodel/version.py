"""Version of the package."""

__version__ = "0.11.0"
