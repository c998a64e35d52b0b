"""What fits of sweeps expect before they see data, and how well they predict sweeps left out."""
