"""Pipeline parallelism: stages of a model, schedules of their passes, and both joined to a plan."""
