"""The result of a query: streamed, or taken whole as Arrow, pandas, polars or rows."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.errors import Invalid
from lake.query.execution import Execution
from lake.query.scanned import Scanned

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class Result:
    """Rows of one query. They can be streamed once, or taken whole in any form any number of times.

    A result that is dropped, closed or left as a context manager stops its query.
    """

    def __init__(self, execution: Execution, scanned: Scanned) -> None:
        self._execution = execution
        self._scanned = scanned
        self._schema = execution.schema()
        self._table: pa.Table | None = None
        self._streaming = False
        self._abandon = weakref.finalize(self, execution.stop)
        self._abandon.atexit = False

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows."""
        return self._schema

    @property
    def scanned(self) -> Scanned:
        """Snapshot, files read and pruned per table, and functions called."""
        return self._scanned

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches as they are computed; memory stays bounded.

        Raises:
            Invalid: they were streamed before.
            LimitExceeded: time or memory ran out.
            Cancelled: the query was cancelled.
        """
        if self._table is not None:
            yield from self._table.to_batches()
            return
        if self._streaming:
            raise Invalid("the batches of a result can be read once: run the query again or use arrow()")
        self._streaming = True
        for batch in self._execution.batches():
            if batch.num_rows:
                yield batch if batch.schema == self._schema else batch.cast(self._schema)
        self._abandon.detach()

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table.

        Raises:
            Invalid: they were streamed before.
            LimitExceeded: time or memory ran out.
            Cancelled: the query was cancelled.
        """
        if self._table is None:
            self._table = pa.Table.from_batches(self.batches(), schema=self._schema)
        return self._table

    def pandas(self) -> pd.DataFrame:
        """All rows as a pandas data frame; raises as `arrow`."""
        return self.arrow().to_pandas()

    def polars(self) -> pl.DataFrame:
        """All rows as a polars data frame; raises as `arrow`."""
        import polars

        return polars.DataFrame(self.arrow())

    def rows(self) -> list[dict[str, Any]]:
        """All rows as dicts; raises as `arrow`.

        Timestamps become aware `datetime` values, which hold microseconds: take `arrow` for nanoseconds. Maps
        become dicts.
        """
        table = self.arrow()
        rows: list[dict[str, Any]] = table.cast(_microseconds(table.schema), safe=False).to_pylist(
            maps_as_pydicts="lossy"
        )
        return rows

    def cancel(self) -> None:
        """Stop the query; whoever reads it gets `Cancelled`. Safe from any thread."""
        self._abandon()

    def close(self) -> None:
        """Release the query; rows taken whole stay readable."""
        self._abandon()

    def __enter__(self) -> Result:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _microseconds(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_coarse(field.type)) for field in schema])


def _coarse(kind: pa.DataType) -> pa.DataType:
    """The type with every nanosecond timestamp in it in microseconds."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_coarse(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_coarse(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_coarse(field.type)) for field in kind])
    return kind
