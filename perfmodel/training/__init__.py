"""Strategies: what a training step does, as a StepPlan."""
