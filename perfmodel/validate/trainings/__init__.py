"""trainings."""
