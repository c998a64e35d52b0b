"""Decoders whose feed-forward parts are experts, of which each token takes a few."""

from perfmodel.workload.zoo.decoders.experts.expert_settings import ExpertSettings

__all__ = ["ExpertSettings"]
