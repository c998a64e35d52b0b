"""Times of single kernels, by kind, shape and GPU."""
