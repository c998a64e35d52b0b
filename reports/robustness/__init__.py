"""What happens to sweeps, stores and output files when the machine does not play along."""
