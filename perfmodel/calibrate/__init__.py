"""From measurements to a Profile with intervals: `fit`; `apply.apply` puts one on a machine."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.calibrate.apply import draws, interval_s, measured_at
    from perfmodel.calibrate.checks import doubts
    from perfmodel.calibrate.link_fit import fit, source_of
    from perfmodel.calibrate.profile import Profile, read_profile, write_profile

__all__ = [
    "Profile",
    "doubts",
    "draws",
    "fit",
    "interval_s",
    "measured_at",
    "read_profile",
    "source_of",
    "write_profile",
]

_HOMES = {
    "Profile": "profile",
    "doubts": "checks",
    "draws": "apply",
    "fit": "link_fit",
    "interval_s": "apply",
    "measured_at": "apply",
    "read_profile": "profile",
    "source_of": "link_fit",
    "write_profile": "profile",
}
"""Module of each name."""


def __getattr__(name: str) -> object:
    """Import a name when it is first used: most commands need no profile."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
