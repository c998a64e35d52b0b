"""Local SGD: rounds of local steps, and averages of parameters; see `rounds.local_sgd_plan`."""
