"""nvidia_smi."""
