"""What Sphinx does for this site: pages of the reference, pictures, Markdown twins."""
