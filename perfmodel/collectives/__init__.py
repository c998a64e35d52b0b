"""Collective algorithms as schedules, their data check and their closed forms."""
