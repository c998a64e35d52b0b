"""From the model, compute and strategy sections of a scenario to plans and memory."""
