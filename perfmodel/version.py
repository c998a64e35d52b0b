"""Version of the package."""

__version__ = "0.17.0"
