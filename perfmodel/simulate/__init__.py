"""Time on the wire and on the device: the SimPy engine and its fabric."""
