"""NCCL's search of channels in a host; `graphs.ring_graph` and its like."""
