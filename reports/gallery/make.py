"""Remake the gallery: tables, pictures and README.md beside this file.

    python reports/gallery/make.py [-o PAGES] [--only buckets|curves|upgrade] [--no-pictures]

About a minute. `-o PAGES` writes the interactive reports there too, 5 MB each, which are not
kept here. Pictures need the extra ``img`` and a Chromium. The numbers are the same on every run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from gallery import bucket_study, network_upgrade, scaling_curves  # noqa: E402  (by the line above)
from gallery.study import Study  # noqa: E402
from perfmodel.files import write_atomically  # noqa: E402
from perfmodel.report.common.images import render  # noqa: E402

STUDIES: Mapping[str, Callable[[], Study]] = {
    "buckets": bucket_study.study,
    "curves": scaling_curves.study,
    "upgrade": network_upgrade.study,
}

HEAD = """# Gallery

Studies that perfmodel itself made. One command remakes everything here (tables, pictures and this
text), with the same numbers each time:

    python reports/gallery/make.py

It takes about a minute; pictures need `pip install 'perfmodel[img]'` and a Chromium. With
`-o PAGES` it also writes the interactive HTML reports, one of them with the what-if explorer, to
that folder. All of these are predictions from datasheets, not measurements; how far such
predictions are off is in [the validation report](../validation/validation.md).
"""


def make(names: list[str], pages: Path | None, pictures: bool) -> None:
    """Write the chosen studies; the text only together with all of them."""
    found = {name: STUDIES[name]() for name in names}
    for study in found.values():
        for name, text in study.tables.items():
            write_atomically(HERE / name, text)
        if pictures:
            for name, image in render(study.pictures, "png").items():
                write_atomically(HERE / name, image)
        for name, write in study.pages.items() if pages is not None else ():
            write(pages / name)
    if len(found) == len(STUDIES):
        write_atomically(HERE / "README.md", readme(found))


def readme(found: Mapping[str, Study]) -> str:
    """Text of all studies."""
    parts = [HEAD, *(f"## {study.title}\n\n{study.text}\n" for study in found.values())]
    return "\n".join(parts)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "-o", dest="pages", type=Path, metavar="PAGES", help="write HTML reports here"
    )
    parser.add_argument("--only", choices=STUDIES, help="one study; README.md stays as it is")
    parser.add_argument("--no-pictures", action="store_true", help="tables and text only")
    given = parser.parse_args()
    names = [given.only] if given.only else list(STUDIES)
    make(names, given.pages, pictures=not given.no_pictures)


if __name__ == "__main__":
    main()
