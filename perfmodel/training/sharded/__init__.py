"""Training whose parameters, gradients or optimizer states are split over the ranks."""
