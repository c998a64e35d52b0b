"""Collective algorithms as schedules (`catalog.make`), their data check and their timing."""
