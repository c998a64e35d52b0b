"""Models from arguments of Megatron-LM."""
