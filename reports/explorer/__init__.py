"""How good the estimates of the what-if explorer are."""
