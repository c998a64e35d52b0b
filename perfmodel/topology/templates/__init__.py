"""Files of hosts, fabrics and GPUs; `build.build_topology` makes a `Topology` of them."""
