"""Tables that nccl-tests and rccl-tests print; `nccl_text.read_nccl_text` reads a log."""
