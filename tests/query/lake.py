"""A small lake for tests: rows in, published Parquet files and an engine over them out."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake.catalog import open_catalog
from lake.catalog.contract import Catalog
from lake.parquet import write_table
from lake.query import Engine
from lake.records import DataFile, Publication
from lake.schemas import TABLES
from lake.settings import Settings
from lake.store import Store, open_store

_COUNTER = itertools.count()


class TinyLake:
    """A catalog, a store and an engine; `add` publishes one file."""

    def __init__(self, catalog: Catalog, store: Store, **settings: Any) -> None:
        self.catalog = catalog
        self.store = store
        self.settings = Settings(query_threads=2, **settings)
        self.engine = Engine(catalog, store, self.settings)

    @classmethod
    def at(cls, folder: Path, **settings: Any) -> TinyLake:
        """A lake in a folder."""
        return cls(open_catalog(str(folder / "catalog.sqlite")), open_store(str(folder / "objects")), **settings)

    def add(
        self, table: str, rows: Iterable[dict[str, Any]] | pa.Table, *, columns: Sequence[str] | None = None
    ) -> str:
        """Publish rows as one file; `columns` are the only ones written."""
        data = rows if isinstance(rows, pa.Table) else rows_of(table, rows)
        key = f"data/{table}/{next(_COUNTER):06d}.parquet"
        written, described = write_table(table, data, self.settings)
        if columns:
            sink = io.BytesIO()
            pq.write_table(data.select(columns), sink)
            written = sink.getvalue()
        self.store.put(key, written)
        file = DataFile(
            file_id=key,
            table=table,
            path=key,
            rows=data.num_rows,
            size_bytes=len(written),
            ranges=described.ranges,
            sets=described.sets,
        )
        self.catalog.publish(Publication(files=(file,)))
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
