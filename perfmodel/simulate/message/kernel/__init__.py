"""The message kernel: sends on shared links, event by event."""
