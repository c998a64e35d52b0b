"""Every answer of the commands, recorded before and after a change that must not move a number."""
