"""A traced step: what it is made of, beside its simulation."""
