"""The report of ``perfmodel plan``; `page.write_plan` writes it."""
