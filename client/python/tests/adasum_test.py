"""Adasum by halves, without other ranks: who sends what."""

import numpy as np
import pytest
from ringd import _adasum


def rounds(count, size):
    """The counts of each round."""
    spans = [(rank, rank + 1) for rank in range(size)]
    while len(spans) > 1:
        pairs = _adasum.merge(spans)
        yield _adasum.counts_of(count, pairs, size)
        spans = [(a[0], b[1]) for a, b in pairs] + (spans[-1:] if len(spans) % 2 else [])


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 13, 16])
def test_rounds_are_few_and_send_little(size):
    count = 10_007
    matrices = list(rounds(count, size))
    assert len(matrices) == int(np.ceil(np.log2(size)))
    sent = sum(matrix - np.diag(np.diag(matrix)) for matrix in matrices)
    # Of gathering all tensors it would be size - 1 times the count.
    assert sent.sum(axis=1).max() <= 1.5 * count
    for matrix in matrices:
        for rank in range(size):
            assert matrix[:, rank].sum() % 2 == 0  # As much of a as of b.


def test_four_ranks_halve_twice():
    first, second = rounds(8, 4)
    assert first.tolist() == [[4, 4, 0, 0], [4, 4, 0, 0], [0, 0, 4, 4], [0, 0, 4, 4]]
    assert second.tolist() == [[2, 2, 0, 0], [0, 0, 2, 2], [2, 2, 0, 0], [0, 0, 2, 2]]


def test_a_rank_without_a_partner_waits():
    first, second = rounds(6, 3)
    assert first.tolist() == [[3, 3, 0], [3, 3, 0], [0, 0, 0]]
    assert second.tolist() == [[2, 1, 0], [0, 1, 2], [2, 2, 2]]
