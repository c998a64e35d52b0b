"""Fabrics between hosts: settings, cables, arcs; `templates.build` calls `assemble`."""
