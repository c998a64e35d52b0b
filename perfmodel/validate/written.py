"""The table of residual spread as a file."""

from __future__ import annotations

import io
from pathlib import Path

from perfmodel.files import write_atomically
from perfmodel.library.spread import Spread


def write_spread(spread: Spread, path: Path) -> None:
    """Write the spread as YAML, whole or not at all."""
    from ruamel.yaml import YAML  # noqa: PLC0415  (0.1 s of import)

    yaml = YAML()
    yaml.width = 120
    yaml.default_flow_style = None
    text = io.StringIO()
    text.write(
        "# How far measured times lie from datasheet predictions: factors on the predicted time\n"
        "# that hold 80 %. Made by `perfmodel validate --spread FILE`; do not edit by hand.\n"
    )
    yaml.dump(spread.model_dump(mode="json"), text)
    write_atomically(path, text.getvalue())
