"""The report of ``perfmodel compare``; `page.FILES` says what makes its files."""
