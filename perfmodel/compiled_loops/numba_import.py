"""Import of numba, without SciPy's linear algebra until a function uses that."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

SEEN_ONLY = ("scipy.linalg", "scipy.linalg.cython_blas")
"""Modules that numba imports to see whether they exist (0.15 s), and again where it uses them."""


def import_numba() -> Any:
    """Import numba, with empty modules in place of `SEEN_ONLY` while it looks for them.

    Raises `ImportError`: numba is missing, or does not work with this NumPy.
    """
    import numba

    if "scipy" not in sys.modules or any(name in sys.modules for name in SEEN_ONLY):
        return numba
    sys.modules.update({name: ModuleType(name) for name in SEEN_ONLY})
    try:
        import numba.np.arraymath  # where it looks for them
    finally:
        for name in SEEN_ONLY:
            del sys.modules[name]
    return numba
