"""Fit factors on the mechanism to sweeps of a machine, for any scale of it: `fit.fit_profile`."""
