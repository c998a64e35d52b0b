"""Rules between the sections of a scenario, by what they are about (`broken_rules`)."""
