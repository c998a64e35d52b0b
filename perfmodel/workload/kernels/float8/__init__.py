"""Linear layers in fp8: recipes, the layers that they run in, and their kernels."""
