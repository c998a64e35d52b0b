"""`run.tune_settings`: the settings of any strategy's section that make a step shortest."""
