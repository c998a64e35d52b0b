"""What is trained: parameters, layers and compute time."""
