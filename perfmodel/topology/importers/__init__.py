"""Files of NCCL, nvidia-smi and ibnetdiscover; `import_file` makes templates of them."""

from perfmodel.topology.importers.import_file import import_file
from perfmodel.topology.importers.imported import ImportedTopology

__all__ = ["ImportedTopology", "import_file"]
