"""Tasks, streams and collectives of a plan in simulated time; see `engine.simulate`."""
