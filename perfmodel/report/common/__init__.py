"""Blocks of a report, renderers for HTML, Markdown and terminal; common figures and numbers."""
