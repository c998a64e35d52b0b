"""Search of the priors of a fit of sweeps by leave-one-out prediction: `search_priors.py`."""
