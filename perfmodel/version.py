"""Version of the package."""

__version__ = "0.15.0"
