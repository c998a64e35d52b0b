"""Files in and out: find by name, read and validate YAML and CSV, write; see `load_document`.

YAML is version 1.2: ``1e9`` is a number, ``no`` is a string, a key given twice is
an error. A file is validated by a pydantic model, and each fault becomes one line that names the
file, the line, the field, what was found and what is allowed.
"""

from perfmodel.files.find import (
    USER_FOLDER,
    data_folder,
    find_file,
    is_file,
    is_folder,
    list_shipped,
    path_of,
)
from perfmodel.files.read import line_of, plain, read_text, read_yaml
from perfmodel.files.spec import (
    Bandwidth,
    Bytes,
    Count,
    Factor,
    FileModel,
    FlopRate,
    Latency,
    LinkBandwidth,
    LinkLatency,
    Nodes,
    Parts,
    Power,
    Seconds,
    SizeOrNothing,
    check_rows,
)
from perfmodel.files.validate import (
    attempt,
    collect_faults,
    load_document,
    require_finite,
    shipped,
    validate_document,
)
from perfmodel.files.write import (
    as_json,
    attributes,
    csv_text,
    flow_yaml,
    write_atomically,
    write_json,
    yaml_text,
)

__all__ = [
    "USER_FOLDER",
    "Bandwidth",
    "Bytes",
    "Count",
    "Factor",
    "FileModel",
    "FlopRate",
    "Latency",
    "LinkBandwidth",
    "LinkLatency",
    "Nodes",
    "Parts",
    "Power",
    "Seconds",
    "SizeOrNothing",
    "as_json",
    "attempt",
    "attributes",
    "check_rows",
    "collect_faults",
    "csv_text",
    "data_folder",
    "find_file",
    "flow_yaml",
    "is_file",
    "is_folder",
    "line_of",
    "list_shipped",
    "load_document",
    "path_of",
    "plain",
    "read_text",
    "read_yaml",
    "require_finite",
    "shipped",
    "validate_document",
    "write_atomically",
    "write_json",
    "yaml_text",
]
