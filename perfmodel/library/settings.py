"""What a user tells the communication library: its version and its environment variables."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from perfmodel.files import Spec


class Settings(Spec):
    """Version and environment of the library, and how its processes are laid out.

    Parameters
    ----------
    version : str, optional
        "2.26.2"; default: the newest that the model knows.
    env : mapping of str to str
        ``NCCL_*`` variables.
    one_process : bool
        One process drives all GPUs of a host, so that its launches follow one another.
    """

    version: str | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
    one_process: bool = False
