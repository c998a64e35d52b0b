"""Hardware in text and as a picture; `figure.write_topology` draws it."""
