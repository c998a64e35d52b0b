"""The report of ``perfmodel validate``; `page.write_validation` writes it."""
