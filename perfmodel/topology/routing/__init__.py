"""Routes inside hosts and between them; `router.Router` finds them."""
