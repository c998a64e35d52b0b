"""Image models with torchvision's tensors."""
