"""Bytes of a training on its fullest GPU, what is left beside them, what would make them fit."""
