"""Errors of predicted kernels and whole steps, with GPUs left out."""
