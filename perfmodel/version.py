"""Version of the package."""

__version__ = "0.18.0"
