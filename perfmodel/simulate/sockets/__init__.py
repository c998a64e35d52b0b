"""Gloo message by message, on connections between ranks; see `network.SocketNetwork`."""
