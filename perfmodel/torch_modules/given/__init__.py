"""What users give: a module and a batch, a function that makes them, a configuration."""
