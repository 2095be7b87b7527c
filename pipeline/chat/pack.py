"""Pack whole documents into rows of bounded length: best fit, longest first.

    pack({"a": 5, "b": 4, "c": 3, "d": 3}, 8) == [["a", "c"], ["b", "d"]]

Nothing is cut or dropped. The result depends on ids and lengths alone, not on the order in which they come.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping


def pack(lengths: Mapping[str, int], row_length: int) -> list[list[str]]:
    """Rows of document ids whose lengths sum to at most `row_length`. Every length must be within 1..row_length."""
    rows: list[list[str]] = []
    open_rows: dict[int, list[int]] = {}  # free space -> rows with just that much
    spaces: list[int] = []  # the keys of open_rows, sorted
    for name in sorted(lengths, key=lambda name: (-lengths[name], name)):
        length = lengths[name]
        if not 1 <= length <= row_length:
            raise ValueError(f"document {name} has {length} tokens; rows hold 1 to {row_length}")
        at = bisect_left(spaces, length)
        if at == len(spaces):
            rows.append([])
            row, space = len(rows) - 1, row_length
        else:
            space = spaces[at]
            row = open_rows[space].pop()
            if not open_rows[space]:
                del open_rows[space], spaces[at]
        rows[row].append(name)
        left = space - length
        if left:
            if left not in open_rows:
                open_rows[left] = []
                insort(spaces, left)
            open_rows[left].append(row)
    return rows
