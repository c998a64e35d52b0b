"""Fidelity "flow": fluid edges whose rates change with the traffic; see `network.FlowNetwork`."""
