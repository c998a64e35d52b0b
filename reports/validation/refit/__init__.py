"""Refit the library's constants to recorded sweeps, with families of machines left out."""
