"""Rings and rails of a group of ranks over links; `channels.rings_over` finds its rings."""
