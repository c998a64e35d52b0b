"""Transformers whose blocks normalise layers first: GPT-NeoX, ViT, CLIP, Whisper; their parts."""
