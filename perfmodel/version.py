"""Version of the package."""

__version__ = "0.21.0"
