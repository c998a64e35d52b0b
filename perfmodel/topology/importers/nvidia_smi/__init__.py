"""The matrix of `nvidia-smi topo -m`; `matrix.read_matrix` imports one."""
