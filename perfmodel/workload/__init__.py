"""What is trained: parameters, layers and compute time."""

from perfmodel.workload.model import Layer, LayerTimes, Tensor, Workload
from perfmodel.workload.readers.layer_times import times_from_file
from perfmodel.workload.readers.load import load
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build, zoo_names

__all__ = [
    "Layer",
    "LayerTimes",
    "Tensor",
    "Workload",
    "build",
    "layer_times",
    "load",
    "times_from_file",
    "zoo_names",
]
