"""Workers that loop and servers that are queues, in simulated time."""
