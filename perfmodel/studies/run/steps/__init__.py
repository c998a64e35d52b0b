"""Simulate the steps of one cluster size: `perfmodel.studies.run.steps.one_size.simulate_size`."""
