"""Gradients that travel in other pieces than the model's tensors: fused, or cut and reordered."""
