"""What limits a step, and what it would take without it."""
