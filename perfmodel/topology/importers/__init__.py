"""What people have, read into our own YAML: NCCL's XML, `nvidia-smi topo -m`, `ibnetdiscover`."""

from perfmodel.topology.importers.import_file import import_file
from perfmodel.topology.importers.imported import ImportedTopology

__all__ = ["ImportedTopology", "import_file"]
