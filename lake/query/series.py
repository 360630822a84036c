"""Names of time series: the metric, and those of its attributes that tell its series apart."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.schemas import IDENTITY_ALIASES

_IDENTITY: Final = pa.array(sorted({name for names in IDENTITY_ALIASES.values() for name in names}))


def series_names(metrics: pa.Table) -> pa.Array:
    """`name` of every row, or `name {key=value, …}` with the attributes that have several values there in its process.

    Identity is left out: it is in columns of its own.
    """
    names = pc.fill_null(metrics["name"], "").combine_chunks()
    maps = metrics["attributes"].combine_chunks()
    if not len(names):
        return pa.array([], pa.string())
    bounds = maps.offsets.to_numpy()
    lengths = np.where(maps.is_valid().to_numpy(zero_copy_only=False), np.diff(bounds), 0)
    rows = np.repeat(np.arange(len(names)), lengths)
    begin = np.cumsum(lengths) - lengths
    entry = pa.array(np.repeat(bounds[:-1] - begin, lengths) + np.arange(len(rows)))
    keys, values = (pc.fill_null(part.take(entry).cast(pa.string()), "") for part in (maps.keys, maps.items))
    owners = pc.binary_join_element_wise(metrics["process"].combine_chunks(), names, "\n")
    name_code = pc.dictionary_encode(owners).indices.to_numpy()[rows].astype(np.int64)
    key_code, value_code = (
        pc.dictionary_encode(column).indices.to_numpy().astype(np.int64) for column in (keys, values)
    )
    pair = name_code * (int(key_code.max(initial=0)) + 1) + key_code
    distinct = np.unique(np.stack([pair, value_code], axis=1), axis=0)[:, 0]
    pairs, counts = np.unique(distinct, return_counts=True)
    varies = np.isin(pair, pairs[counts > 1]) & ~pc.is_in(keys, value_set=_IDENTITY).to_numpy(zero_copy_only=False)
    told = pc.binary_join_element_wise(keys, values, "=").filter(pa.array(varies))
    offsets = np.zeros(len(names) + 1, np.int32)
    np.cumsum(np.bincount(rows[varies], minlength=len(names)), out=offsets[1:])
    labels = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), told), ", ")
    whole = pc.binary_join_element_wise(names, " {", labels, "}", "")
    return pc.if_else(pc.equal(labels, ""), names, whole)
