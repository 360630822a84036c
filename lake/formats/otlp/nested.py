"""Lists inside a record: its events, links, exemplars and quantiles, with attributes of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lake.errors import LimitExceeded
from lake.formats.otlp.attributes import merge
from lake.formats.otlp.request import Mask, Request
from lake.formats.wire import Ints


def children_of(request: Request, node: str, rows: Ints, good: Mask) -> tuple[Ints, Ints]:
    """The good rows of `node` under the accepted records `rows`, and `len(rows) + 1` offsets into them."""
    parent = request.scan.parent(node)
    chosen = np.flatnonzero(good & request.accepted[parent])
    counts = np.bincount(parent[chosen], minlength=len(request.accepted))[rows]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return chosen, offsets


def list_of(offsets: Ints, values: pa.Array) -> pa.Array:
    """A list column; null for a record without elements."""
    empty = offsets[1:] == offsets[:-1]
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, mask=pa.array(empty))


def own_maps(request: Request, attributes: str, owner: str, children: Ints) -> tuple[Any, Any]:
    """`attributes` and `attribute_types` of the rows `children` of `owner`, which inherit none.

    Raises:
        LimitExceeded: their text does not fit one Arrow array.
    """
    maps = merge(request.entries, [request.bounds(attributes, request.scan.rows(owner), children)], {}).maps()
    if isinstance(maps[0], pa.ChunkedArray):
        raise LimitExceeded(f"attributes of {owner} of one request are limited to 1 GiB of text; send smaller requests")
    return maps
