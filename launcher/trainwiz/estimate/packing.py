"""How many rows documents make: by the same best fit as in the generated rows.py."""

from __future__ import annotations

from collections.abc import Iterable


def rows(document_tokens: Iterable[int], length: int, *, packing: bool) -> int:
    """How many rows of `length` places the documents make; without packing, one for each piece.

    A document of n tokens is n - 1 predictions, cut at every `length`.
    """
    full, rests = 0, []
    for tokens in document_tokens:
        whole, rest = divmod(max(0, tokens - 1), length)
        full += whole  # each is a row of its own: a file of terabytes must not make a list of them
        rests += [rest] if rest else []
    return full + (_best_fit(rests, length) if packing else len(rests))


def rows_at_most(tokens: int, length: int, *, packing: bool) -> int:
    """A bound on the rows, where only the tokens of all documents together are known.

    Best fit leaves at most one row half empty; a document without a row of its own has two tokens or more.
    """
    return min(tokens // 2, 2 * -(-tokens // length)) if packing else tokens // 2


def _best_fit(sizes: list[int], length: int) -> int:
    with_space, spaces, count = [0] * (length + 1), 0, 0
    for size in sorted(sizes, reverse=True):
        if enough := spaces >> size:
            space = size + (enough & -enough).bit_length() - 1
            with_space[space] -= 1
            if not with_space[space]:
                spaces ^= 1 << space
        else:
            space, count = length, count + 1
        with_space[space - size] += 1
        spaces |= 1 << (space - size)
    return count
