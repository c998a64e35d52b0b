"""Schedules: which pass of which micro-batch a stage runs when. Data alone; no times."""
