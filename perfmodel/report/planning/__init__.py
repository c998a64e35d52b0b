"""The report of ``perfmodel plan``; `page.FILES` says what makes its files."""
