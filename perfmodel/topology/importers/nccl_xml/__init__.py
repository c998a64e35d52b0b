"""nccl_xml."""
