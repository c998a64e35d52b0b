"""Training in which a server holds the parameters."""
