"""Loops over small arrays, compiled by numba: where NumPy spends its time on the calls themselves.

All functions are written a second time with NumPy, by which they are replaced where numba is
missing or not worth loading; the results are the same bits. `compilation` loads all of them at
once. None calls another: numba's cache would not notice that what is called has changed.
"""
