"""How a model is split: what a mixture costs, and how the quickest was found."""
