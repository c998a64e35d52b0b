"""What `strategy: {kind: auto}` chooses, beside settings that were published."""
