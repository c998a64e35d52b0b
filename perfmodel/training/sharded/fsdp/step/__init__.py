"""Forward, backward and update of one step."""
