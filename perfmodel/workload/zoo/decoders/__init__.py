"""Decoders with rotary positions: parts of a block, dense models, and models of experts."""
