"""From measurements to a Profile: link costs with intervals and their source."""

from perfmodel.calibrate.apply import apply
from perfmodel.calibrate.checks import doubts
from perfmodel.calibrate.link_costs.fit import fit, source_of
from perfmodel.calibrate.profile import Profile, read_profile, write_profile
from perfmodel.calibrate.sampling import draws, interval_s, measured_at

__all__ = [
    "Profile",
    "apply",
    "doubts",
    "draws",
    "fit",
    "interval_s",
    "measured_at",
    "read_profile",
    "source_of",
    "write_profile",
]
