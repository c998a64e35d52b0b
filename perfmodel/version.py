"""Version of the package."""

__version__ = "0.16.0"
