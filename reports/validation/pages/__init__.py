"""The report of ``python -m reports.validation``; `page.write_validation` writes it."""
