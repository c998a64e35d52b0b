"""Heaviest paths through edges that follow one another."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import FloatArray, IntArray


def heaviest(
    sources: IntArray,
    order: IntArray,
    own_s: FloatArray,
    gains_s: FloatArray,
    begins_s: FloatArray,
    best: FloatArray,
    rows: FloatArray,
) -> None:
    """Heaviest paths to edges, each after those that come before it (see `path_classes`).

    Parameters
    ----------
    sources : ndarray of int, shape (most, edges)
        Places of edges that come before; padded with the number of edges.
    order : ndarray of int, shape (edges,)
        The edge at each place.
    own_s, begins_s : ndarray of float, shape (edges,)
        By place, as all that follows.
    gains_s : ndarray of float, shape (3, edges)
    best : ndarray of float, shape (5, edges + 1)
        By what a path has gained: nothing, the first gain, the second, the third, the second and
        the third. Its last column is given; the others are filled.
    rows : ndarray of float, shape (5, edges + 1)
        The result, by edge.
    """
    edges, last = len(order), best.shape[1] - 1
    reached = np.empty(5)
    for place in range(edges):
        for row in range(5):
            reached[row] = begins_s[place]
            for column in range(len(sources)):
                reached[row] = max(reached[row], best[row, sources[column, place]])
        first = reached[0] + gains_s[0, place]
        second, third = reached[0] + gains_s[1, place], reached[0] + gains_s[2, place]
        both = max(reached[2] + gains_s[2, place], reached[3] + gains_s[1, place])
        reached[1] = max(reached[1], first)
        reached[4] = max(reached[4], both, second + gains_s[2, place])
        reached[2], reached[3] = max(reached[2], second), max(reached[3], third)
        for row in range(5):
            best[row, place] = reached[row] + own_s[place]
            rows[row, order[place]] = best[row, place]
    for row in range(5):
        rows[row, last] = best[row, last]
