"""The report of ``perfmodel compare``; `page.write_comparison` writes it."""
