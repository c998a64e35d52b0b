"""Which of the evaluated caps to recommend: `tie_breaking`, `robustness`, `minimax_regret`."""
