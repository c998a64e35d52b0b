"""Training steps and kernels on one GPU: predicted first, then measured."""
