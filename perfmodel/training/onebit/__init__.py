"""Optimizers that send one bit per element: DeepSpeed's 1-bit Adam, 0/1 Adam and 1-bit LAMB."""
