"""A small lake for tests: rows in, published Parquet files and an engine over them out."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.catalog import open_catalog
from lake.catalog.contract import Catalog
from lake.query import Engine
from lake.records import MAX_SET_VALUES, PRUNE_RANGES, PRUNE_SETS, DataFile, NumberRange, Publication, ValueSet
from lake.schemas import TABLES
from lake.settings import Settings
from lake.store import Store, open_store

_COUNTER = itertools.count()


class TinyLake:
    """A catalog, a store and an engine; `add` publishes one file."""

    def __init__(self, catalog: Catalog, store: Store, **settings: Any) -> None:
        self.catalog = catalog
        self.store = store
        self.engine = Engine(catalog, store, Settings(query_threads=2, **settings))

    @classmethod
    def at(cls, folder: Path, **settings: Any) -> TinyLake:
        """A lake in a folder."""
        return cls(open_catalog(str(folder / "catalog.sqlite")), open_store(str(folder / "objects")), **settings)

    def add(self, table: str, rows: Iterable[dict[str, Any]] | pa.Table, *, columns: Sequence[str] | None = None) -> str:
        """Publish rows as one file; `columns` are the only ones written."""
        data = rows if isinstance(rows, pa.Table) else rows_of(table, rows)
        key = f"data/{table}/{next(_COUNTER):06d}.parquet"
        sink = io.BytesIO()
        pq.write_table(data.select(columns) if columns else data, sink, compression="zstd", write_page_index=True)
        self.store.put(key, sink.getvalue())
        self.catalog.publish(Publication(files=(data_file(table, key, data, len(sink.getvalue())),)))
        return key

    def rows(self, query: str, params: Any = None, **options: Any) -> list[dict[str, Any]]:
        """Rows of a query."""
        return self.engine.sql(query, params, **options).rows()

    def column(self, query: str, params: Any = None) -> list[Any]:
        """Values of the first column of a query."""
        return self.engine.sql(query, params).arrow().column(0).to_pylist()


def rows_of(table: str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Rows with absent columns null; `ts` may be an int of nanoseconds."""
    return pa.Table.from_pylist(list(rows), schema=TABLES[table].schema)


def data_file(table: str, key: str, data: pa.Table, size_bytes: int) -> DataFile:
    """What the catalog prunes a file by."""
    return DataFile(
        file_id=key,
        table=table,
        path=key,
        rows=data.num_rows,
        size_bytes=size_bytes,
        ranges={name: _range(data[name]) for name in PRUNE_RANGES if name in data.column_names},
        sets={name: _values(data[name]) for name in PRUNE_SETS if name in data.column_names},
    )


def _range(column: pa.ChunkedArray) -> NumberRange:
    bounds = pc.min_max(column.cast(pa.int64()))
    return NumberRange(low=bounds["min"].as_py(), high=bounds["max"].as_py(), has_null=column.null_count > 0)


def _values(column: pa.ChunkedArray) -> ValueSet:
    found = set(column.unique().drop_null().to_pylist())
    values = frozenset(found) if len(found) <= MAX_SET_VALUES else None
    return ValueSet(values=values, has_null=column.null_count > 0)
