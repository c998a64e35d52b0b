"""Hardware as a NetworkX graph: templates, fabrics, routes."""
