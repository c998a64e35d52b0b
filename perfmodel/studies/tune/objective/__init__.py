"""The time of a step as a function of its buckets: `evaluator.make_evaluator`."""
