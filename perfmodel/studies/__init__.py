"""Questions that are asked of the model: run, sweep, compare, tune and plan."""
