"""What NCCL decides by itself: channels, algorithm, protocol; `tuner.choices`."""
