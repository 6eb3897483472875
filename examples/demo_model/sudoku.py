"""4x4 sudoku puzzles with exactly one solution."""

from functools import cache
from itertools import permutations
from random import Random

import numpy as np

CLUES = (6, 7, 8, 9, 10, 11)
_CLUE_WEIGHTS = (3, 3, 3, 2, 2, 1)


@cache
def grids() -> np.ndarray:
    """All 288 solved grids, one row of 16 digits each."""
    rows = list(permutations("1234"))
    found: list[str] = []
    _extend("", rows, found)
    return np.array([[int(c) for c in grid] for grid in found])


def _extend(grid: str, rows: list[tuple[str, ...]], found: list[str]) -> None:
    if len(grid) == 16:
        found.append(grid)
        return
    for row in rows:
        candidate = grid + "".join(row)
        if _consistent(candidate):
            _extend(candidate, rows, found)


def _consistent(grid: str) -> bool:
    columns = (grid[c::4] for c in range(4))
    starts = [r * 4 + c for r in range(0, len(grid) // 4 - 1, 2) for c in (0, 2)]
    boxes = (grid[s : s + 2] + grid[s + 4 : s + 6] for s in starts)
    return all(len(set(unit)) == len(unit) for unit in (*columns, *boxes))


def count_solutions(puzzle: str) -> int:
    """How many grids agree with a puzzle such as `1_3_/_4_2/2__3/__21`."""
    cells = puzzle.replace("/", "")
    clues = [i for i, c in enumerate(cells) if c != "_"]
    return int((grids()[:, clues] == [int(cells[i]) for i in clues]).all(axis=1).sum())


def make(rng: Random) -> tuple[str, str]:
    """A random puzzle and its solution."""
    while True:
        grid = grids()[rng.randrange(288)]
        (count,) = rng.choices(CLUES, _CLUE_WEIGHTS)
        clues = rng.sample(range(16), count)
        if (grids()[:, clues] == grid[clues]).all(axis=1).sum() == 1:
            solution = [str(d) for d in grid]
            return _lines([d if i in clues else "_" for i, d in enumerate(solution)]), _lines(solution)


def _lines(cells: list[str]) -> str:
    return "/".join("".join(cells[i : i + 4]) for i in range(0, 16, 4))
