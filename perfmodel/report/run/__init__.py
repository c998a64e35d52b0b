"""The report of ``perfmodel run``; `page.write_report` writes it."""
