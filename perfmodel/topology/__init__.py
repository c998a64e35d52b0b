"""Hardware as a graph of devices and links; `templates.build.build_topology` makes it."""
