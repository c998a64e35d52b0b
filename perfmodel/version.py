"""Version of the package."""

__version__ = "0.19.0"
