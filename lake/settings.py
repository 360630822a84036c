"""Settings of one lake, read from `LAKE_*` environment variables once and then frozen."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any

from lake.errors import Invalid

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Tunable limits and sizes; every field `x` is overridden by the variable `LAKE_X`.

    Sizes are bytes, times are seconds. Limits apply to one file or one query.
    """

    max_file_bytes: int = 8192 * _MIB
    """Largest input file taken, before and after decompression."""
    max_decompression_ratio: int = 1000
    """Refuse a compressed input that grows more than this many times (bombs), once above 64 MiB."""
    max_depth: int = 64
    """Deepest nesting of a decoded value (OTLP AnyValue, JSON args, pickle)."""
    max_attributes: int = 1024
    """Attributes kept per row; a record with more is rejected alone."""
    flush_rows: int = 1_000_000
    """Rows buffered over all tables before Parquet files are written and published."""
    flush_bytes: int = 256 * _MIB
    """Arrow bytes buffered over all tables before Parquet files are written and published."""
    window_s: int = 3600
    """Width of the time window that one Parquet file covers."""
    row_group_rows: int = 131_072
    """Rows of one Parquet row group; what a filter skips is skipped in this unit."""
    query_memory_bytes: int = 4096 * _MIB
    """Memory pool of one query; sorts, joins and aggregations spill to disk above it."""
    query_timeout_s: float = 300.0
    """Time one query may take, the table functions in it included."""
    query_threads: int = 0
    """Partitions of one query; 0 means the number of processors."""
    reader_cache_bytes: int = 512 * _MIB
    """Arrow bytes of raw objects read in place that are kept for the next query."""
    identity_aliases: str = ""
    """Extra attribute names of identity columns: `rank_id=my.rank,job_rank;run_id=job`."""

    @classmethod
    def from_env(cls, environ: dict[str, str] | None = None, **overrides: Any) -> Settings:
        """Settings from `LAKE_*` variables, then `overrides`.

        Raises:
            Invalid: a variable does not parse as its field's type.
        """
        env = dict(os.environ) if environ is None else environ
        values: dict[str, Any] = {}
        for field in fields(cls):
            text = env.get(f"LAKE_{field.name.upper()}")
            if text is None:
                continue
            convert = {"int": int, "float": float, "str": str}[str(field.type)]
            try:
                values[field.name] = convert(text)
            except ValueError as error:
                wanted = {"int": "a whole number", "float": "a number"}[str(field.type)]
                raise Invalid(f"LAKE_{field.name.upper()} must be {wanted}, got {text!r}") from error
        return replace(cls(), **{**values, **overrides})
