"""NCCL's own algorithms laid on channels, NICs and switches; `dispatch.find_layer`."""
