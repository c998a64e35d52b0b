"""ZeRO-Offload and ZeRO-Infinity: what lies in the memory of the host, or on its drives."""
