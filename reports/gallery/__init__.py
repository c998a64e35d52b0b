"""Studies that the tool itself made, and the command that remakes them."""
