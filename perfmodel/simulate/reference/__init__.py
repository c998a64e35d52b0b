"""The whole model in plain SimPy, written to be read; ``perfmodel/README.md`` walks through it."""
