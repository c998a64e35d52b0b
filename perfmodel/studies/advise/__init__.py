"""`run.advise_scenario`: what to change in a scenario, each change alone and the best together."""
