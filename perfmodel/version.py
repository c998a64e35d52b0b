"""Version of the package."""

__version__ = "0.22.1"
