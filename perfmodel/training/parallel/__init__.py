"""Mixtures: where the ranks of each dimension stand, and plans of one dimension on all of them."""
