"""``perfmodel doctor``: what is installed, which devices are seen, what can be measured here."""

from __future__ import annotations

from perfmodel.cli.options import JsonOption
from perfmodel.cli.output import print_json, print_text

DOCTOR_EXAMPLES = ("perfmodel doctor", "perfmodel doctor --json")


def doctor(json: JsonOption = False) -> None:
    """Say what is installed, what each extra adds, which devices are seen, what to measure here.

    Sends nothing anywhere; paste its output into a question. It never fails.
    """
    from perfmodel.api.doctor import describe_installation, inspect_installation

    installation = inspect_installation()
    if json:
        from perfmodel.files import as_json

        print_json(as_json(installation, "installation"))
    else:
        print_text("\n".join(describe_installation(installation)))
