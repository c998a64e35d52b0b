"""Fidelity "message": every send is an event; see `network.MessageNetwork`."""
