"""The compiled loops of the search inside FOCI: see ``incremental`` for what they are about."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from excise.statistics._compiled import compiled
from excise.statistics._neighbors import NOBODY, TIE, draw, draw_twin, mix, nearest_on_line

LANES = 8  # columns scanned together
STRIDE = 4  # listed neighbours looked at between two checks of the bound


@compiled
def sums_on_line(columns: Any, orders: Any, key: Any, rank: Any) -> Any:
    """Σ min(R_i, R_M(i)) of each column by itself; puts equal values in ``orders`` in the order of their rows."""
    sums = np.zeros(len(columns))
    for c in range(len(columns)):
        neighbor = nearest_on_line(columns[c], orders[c], key)
        for i in range(len(rank)):
            sums[c] += min(rank[i], rank[neighbor[i]])
    return sums


@intrinsic
def _scan_some(_context: Any, state: Any, tile: Any, near: Any, distance: Any, rank: Any) -> Any:
    """Look at the next ``STRIDE`` listed rows for ``LANES`` columns at once; returns the largest of the best distances.

    The compiler does not vectorise this loop by itself, and in vector registers it is over five times as fast.
    ``state`` has four rows of ``LANES`` numbers: best squared distance, second best, rank of y at the best, the
    column's values at row i. In plain Python, for every lane::

        for j, d_S in zip(near[:STRIDE], distance[:STRIDE]):
            d = d_S + (state[3] - tile[j]) ** 2
            if d < state[0]: state[1], state[0], state[2] = state[0], d, rank[j]
            else: state[1] = min(state[1], d)
    """
    vector = ir.VectorType(ir.DoubleType(), LANES)
    i32, i64 = ir.IntType(32), ir.IntType(64)
    signature = types.float64(state, tile, near, distance, rank)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, arg).data for kind, arg in zip(signature.args, args, strict=True)
        ]
        lanes = [builder.bitcast(array, vector.as_pointer()) for array in arrays[:2]]
        near, distance, rank = arrays[2:]

        def at(pointer: Any, index: Any) -> Any:
            return builder.gep(pointer, [i64(index) if isinstance(index, int) else index])

        def to_all_lanes(number: Any) -> Any:
            one = builder.insert_element(vector(ir.Undefined), number, i32(0))
            return builder.shuffle_vector(one, vector(ir.Undefined), ir.VectorType(i32, LANES)([0] * LANES))

        best, second, best_rank, here = (builder.load(at(lanes[0], row), align=8) for row in range(4))
        for step in range(STRIDE):
            j = builder.sext(builder.load(at(near, step)), i64)
            difference = builder.fsub(here, builder.load(at(lanes[1], j), align=8))
            d = builder.fadd(to_all_lanes(builder.load(at(distance, step))), builder.fmul(difference, difference))
            closer = builder.fcmp_ordered("<", d, best)
            best_rank = builder.select(closer, to_all_lanes(builder.load(at(rank, j))), best_rank)
            loser = builder.select(closer, best, d)
            second = builder.select(builder.fcmp_ordered("<", loser, second), loser, second)
            best = builder.select(closer, d, best)
        for row, value in enumerate((best, second, best_rank)):
            builder.store(value, at(lanes[0], row), align=8)
        worst, width = best, LANES
        while width > 1:
            width //= 2
            halves = [
                builder.shuffle_vector(worst, worst.type(ir.Undefined), ir.VectorType(i32, width)(list(part)))
                for part in (range(width), range(width, 2 * width))
            ]
            worst = builder.select(builder.fcmp_ordered(">", *halves), *halves)
        return builder.extract_element(worst, i32(0))

    return signature, generate


@compiled
def sums_over_rows(
    tiles: Any,
    orders: Any,
    key: Any,
    who: Any,
    near: Any,
    distance: Any,
    horizon: Any,
    points: Any,
    rank: Any,
    rest: Any,
    mark: Any,
    sums: Any,
) -> None:
    """Add to ``sums`` of each column min(R_i, R_M(i)) of the rows ``who``, all distinct in ``points``.

    ``rest`` is the sum of the ranks after each row: when even that would not lift a tile's best column up to the
    mark, it is added instead of looking further.
    """
    length = near.shape[1]
    state = np.empty((4, LANES))
    for t in range(len(tiles)):
        tile = tiles[t]
        total = sums[t * LANES : (t + 1) * LANES]
        for r in range(len(who)):
            i = who[r]
            state[0, :] = np.inf
            state[1, :] = np.inf
            state[2, :] = 0.0
            state[3, :] = tile[i]
            reach = np.inf
            at = 0
            while at < length and distance[r, at] <= reach:
                reach = _scan_some(state, tile, near[r, at:], distance[r, at:], rank) * (1 + TIE)
                at += STRIDE
            for lane in range(LANES):
                best = state[0, lane]
                mate = state[2, lane]
                if best * (1 + TIE) >= horizon[r]:
                    mate = rank[_search_along(i, tile[:, lane], orders[t * LANES + lane], points, best, mix(key, i))]
                elif state[1, lane] <= best * (1 + TIE):
                    reach = best * (1 + TIE)
                    mate = rank[_search_list(i, tile[:, lane], near[r], distance[r], reach, mix(key, i))]
                total[lane] += min(rank[i], mate)
            if total.max() + rest[r] < mark[0]:
                block_rest = rest[r] - rest[-1]
                for lane in range(LANES):
                    total[lane] += block_rest
                break


@compiled
def _search_list(i: Any, column: Any, near: Any, distance: Any, reach: float, key: Any) -> Any:
    """One of the listed rows within reach."""
    lowest, drawn = NOBODY
    for t in range(len(near)):
        if distance[t] > reach:
            break
        if distance[t] + (column[i] - column[near[t]]) ** 2 <= reach:
            lowest, drawn = draw(near, t, t + 1, key, lowest, drawn)
    return drawn


@compiled
def _search_along(i: int, column: Any, order: Any, points: Any, best: float, key: Any) -> Any:
    """The neighbour of row i where its list was too short, mostly for an outlier of the candidate column.

    Such a row has few others near it in that column: go along the column's order, to both sides, until the step in
    it alone is beyond the best distance.
    """
    n = len(column)
    middle = _place(column[i], column, order, 0, n)
    for step in (-1, 1):
        at = middle - 1 if step < 0 else middle
        while 0 <= at < n and (column[order[at]] - column[i]) ** 2 < best:
            if order[at] != i:
                best = min(best, (column[order[at]] - column[i]) ** 2 + _squared(points, i, order[at]))
            at += step
    reach = best * (1 + TIE)
    lowest, drawn = NOBODY
    for step in (-1, 1):
        at = middle - 1 if step < 0 else middle
        while 0 <= at < n and (column[order[at]] - column[i]) ** 2 <= reach:
            if order[at] != i and (column[order[at]] - column[i]) ** 2 + _squared(points, i, order[at]) <= reach:
                lowest, drawn = draw(order, at, at + 1, key, lowest, drawn)
            at += step
    return drawn


@compiled
def _squared(points: Any, i: int, j: int) -> Any:
    total = 0.0
    for k in range(points.shape[1]):
        total += (points[i, k] - points[j, k]) ** 2
    return total


@compiled
def sum_over_cells(
    column: Any,
    order: Any,
    key: Any,
    cell_of: Any,
    start: Any,
    first: int,
    near: Any,
    distance: Any,
    horizon: Any,
    centers: Any,
    rank: Any,
) -> Any:
    """Sum of min(R_i, R_M(i)) over the rows of the listed cells, for one column."""
    n = len(column)
    # each cell's rows sorted by (value, row): a counting sort of the column's order
    fill = start[:-1].copy()
    sorted_rows = np.empty(n, dtype=np.int64)
    for at in range(n):
        i = order[at]
        cell = cell_of[i]
        sorted_rows[fill[cell]] = i
        fill[cell] += 1
    total = 0.0
    for r in range(len(near)):
        cell = first + r
        low, end = start[cell], start[cell + 1]
        while low < end:
            high = low + 1
            while high < end and column[sorted_rows[high]] == column[sorted_rows[low]]:
                high += 1
            if high - low > 1:  # twins in all columns
                for at in range(low, high):
                    total += min(rank[sorted_rows[at]], rank[draw_twin(sorted_rows, low, high, at, key)])
            else:
                i = sorted_rows[low]
                j = _search_cells(i, cell, column, sorted_rows, start, near[r], distance[r], horizon[r], centers, key)
                total += min(rank[i], rank[j])
            low = high
    return total


@compiled
def _search_cells(
    i: int,
    cell: int,
    column: Any,
    rows: Any,
    start: Any,
    near: Any,
    distance: Any,
    horizon: float,
    centers: Any,
    key: Any,
) -> Any:
    """The neighbour of a row without twin: first the smallest distance, then one of the rows within reach of it."""
    best = _step_in_cell(i, column, rows, start[cell], start[cell + 1])
    for t in range(len(near)):
        if distance[t] >= best:
            break
        best = min(best, distance[t] + _step_in_cell(i, column, rows, start[near[t]], start[near[t] + 1]))
    beyond = best * (1 + TIE) >= horizon
    if beyond:
        for other in range(len(centers)):
            if other != cell:
                apart = _squared(centers, cell, other)
                if apart < best:
                    best = min(best, apart + _step_in_cell(i, column, rows, start[other], start[other + 1]))
    reach = best * (1 + TIE)
    key = mix(key, i)
    lowest, drawn = _draw_in_cell(i, column, rows, start[cell], start[cell + 1], 0.0, reach, key, *NOBODY)
    if beyond:
        for other in range(len(centers)):
            if other != cell:
                low, high, apart = start[other], start[other + 1], _squared(centers, cell, other)
                if apart <= reach:
                    lowest, drawn = _draw_in_cell(i, column, rows, low, high, apart, reach, key, lowest, drawn)
    else:
        for t in range(len(near)):
            if distance[t] > reach:
                break
            low, high, apart = start[near[t]], start[near[t] + 1], distance[t]
            lowest, drawn = _draw_in_cell(i, column, rows, low, high, apart, reach, key, lowest, drawn)
    return drawn


@compiled
def _place(value: float, column: Any, rows: Any, low: int, high: int) -> int:
    """Where ``value`` would stand among the cell's rows, which are sorted by the column: before its equals."""
    while low < high:
        middle = (low + high) // 2
        if column[rows[middle]] < value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _step_in_cell(i: int, column: Any, rows: Any, low: int, high: int) -> float:
    """Smallest squared difference of the column between i and the other rows of a cell."""
    at = _place(column[i], column, rows, low, high)
    step = (column[i] - column[rows[at - 1]]) ** 2 if at > low else np.inf
    if at < high and rows[at] == i:
        at += 1
    if at < high:
        step = min(step, (column[rows[at]] - column[i]) ** 2)
    return step


@compiled
def _draw_in_cell(
    i: int, column: Any, rows: Any, low: int, high: int, apart: float, reach: float, key: Any, lowest: Any, drawn: Any
) -> Any:
    """Go on drawing among the cell's rows within reach, which stand next to where i would."""
    middle = _place(column[i], column, rows, low, high)
    for step in (-1, 1):
        at = middle - 1 if step < 0 else middle
        while low <= at < high and apart + (column[i] - column[rows[at]]) ** 2 <= reach:
            if rows[at] != i:
                lowest, drawn = draw(rows, at, at + 1, key, lowest, drawn)
            at += step
    return lowest, drawn
