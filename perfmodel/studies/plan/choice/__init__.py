"""Which option answers the plan, and what that depends on."""
