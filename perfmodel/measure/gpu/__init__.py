"""Backend ``device``: virtual ranks and microbenchmarks on one GPU; see `measure_device`."""
