"""NCCL's XML files of topologies and graphs; `read.read_nccl` imports one."""
