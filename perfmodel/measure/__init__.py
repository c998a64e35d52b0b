"""Schedules executed for real: processes on gloo or NCCL, streams on one device."""
