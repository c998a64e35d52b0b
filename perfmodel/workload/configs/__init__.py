"""Models that a user states by their sizes: a shape, a ``config.json``, Megatron's arguments."""

from perfmodel.workload.configs.hugging_face import read_config

__all__ = ["read_config"]
