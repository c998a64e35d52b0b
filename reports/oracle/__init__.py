"""Independent checks of the simulators: against SimGrid, and of one fidelity against the other."""
