"""Communication hooks: how each family of them reduces a bucket, and what it keeps in memory."""
