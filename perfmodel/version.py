"""Version of the package."""

__version__ = "0.13.0"
