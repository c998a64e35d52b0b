"""Collectives with no other traffic: `timer.UncontendedTimer` takes the fastest candidate."""
