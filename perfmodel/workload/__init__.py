"""The trained model: parameters, layers, memory and compute time; see `load_workload`."""

from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload
from perfmodel.workload.readers.layer_times import read_layer_times
from perfmodel.workload.readers.load import load_workload
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build_model, zoo_names

__all__ = [
    "Layer",
    "LayerTimes",
    "ParameterTensor",
    "Workload",
    "build_model",
    "layer_times",
    "load_workload",
    "read_layer_times",
    "zoo_names",
]
