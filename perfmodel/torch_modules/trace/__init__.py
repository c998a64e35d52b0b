"""One training step of a module on fake tensors: operators, kept tensors, order of gradients."""
