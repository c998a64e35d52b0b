"""The report of ``perfmodel tune``; `page.FILES` says what makes its files."""
