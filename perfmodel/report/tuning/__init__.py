"""The report of ``perfmodel tune``; `page.write_tuned` writes it."""
