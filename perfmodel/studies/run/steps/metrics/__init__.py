"""What is read off a run: where a step goes, and what it sends."""
