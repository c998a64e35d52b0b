"""The same seed gives the same bits whatever vector units the processor has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

DIGEST = """
import hashlib
from perfmodel.simulate.engine.jitter import Jitter
digest = hashlib.sha256()
for kind in ("normal", "lognormal", "gamma", "exponential"):
    for step in range(20):
        digest.update(Jitter(kind, 0.1, "step", 7).factors(1000, step, 0).tobytes())
print(digest.hexdigest())
"""

LESS = {
    "NumPy without AVX-512": {"NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR"},
    "the C library without FMA": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F"},
}


def digest_with(**variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DIGEST],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("variables", LESS.values(), ids=LESS.keys())
def test_draws_do_not_depend_on_vector_units(variables: dict[str, str]) -> None:
    assert digest_with(**variables) == digest_with()
