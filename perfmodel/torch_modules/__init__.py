"""A module of PyTorch as a model file: captured on fake tensors, or measured; needs torch."""

from perfmodel.torch_modules.capture import Capture, capture

__all__ = ["Capture", "capture"]
