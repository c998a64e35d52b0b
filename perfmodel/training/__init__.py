"""Strategies of training as plans of tasks, and their memory; see `strategies.STRATEGIES`."""
