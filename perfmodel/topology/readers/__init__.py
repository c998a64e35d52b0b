"""What people have, read into our own YAML: NCCL's XML, `nvidia-smi topo -m`, `ibnetdiscover`."""

from perfmodel.topology.readers.dispatch import import_file
from perfmodel.topology.readers.imported import Imported

__all__ = ["Imported", "import_file"]
