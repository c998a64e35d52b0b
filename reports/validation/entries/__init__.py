"""Records on their way into the ledger: `first_predictions` predicts them before anything else."""
