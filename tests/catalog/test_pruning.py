"""A file that holds a matching row is never pruned, and statistics are used as far as they go.

The model is brute force: files are lists of rows, and a predicate is evaluated row by row with SQL's
three-valued logic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake.catalog import Catalog, open_catalog
from lake.catalog.pruning import INT64_MAX, INT64_MIN, MAX_CONDITIONS, MAX_LISTED, MAX_SPANS
from lake.predicates import Always, And, Compare, IsNull, Never, OneOf, Or, Predicate, Prefix
from lake.records import MAX_SET_VALUES, DataFile, NumberRange, Publication, ValueSet

Row = dict[str, Any]
NUMBERS = ("ts", "step_id", "rank_id")
TEXTS = ("run_id", "name")
_IDS = itertools.count()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def catalog(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    if request.param == "sqlite":
        url = str(tmp_path_factory.mktemp("catalog") / "c.db")
    else:
        url = request.getfixturevalue("postgres_url")
    with closing(open_catalog(url)) as opened:
        yield opened


def data_file(rows: Sequence[Row], table: str = "spans") -> DataFile:
    """A file with the statistics that a writer computes of its rows."""
    ranges, sets = {}, {}
    for name in NUMBERS:
        known = [row[name] for row in rows if row[name] is not None]
        ranges[name] = NumberRange(
            low=min(known, default=None), high=max(known, default=None), has_null=len(known) < len(rows)
        )
    for name in TEXTS:
        texts = frozenset(row[name] for row in rows if row[name] is not None)
        sets[name] = ValueSet(
            values=texts if len(texts) <= MAX_SET_VALUES else None, has_null=any(row[name] is None for row in rows)
        )
    number = next(_IDS)
    return DataFile(
        file_id=f"f{number}",
        table=table,
        path=f"{table}/{number:09}",
        rows=len(rows),
        size_bytes=1,
        ranges=ranges,
        sets=sets,
    )


def matches(predicate: Predicate, row: Row) -> bool | None:
    """Value of the predicate for a row; None is SQL's unknown."""
    operators: dict[str, Callable[[Any, Any], bool]] = {
        "=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    }  # fmt: skip
    match predicate:
        case Always():
            return True
        case Never():
            return False
        case And(parts):
            values = [matches(part, row) for part in parts]
            return False if False in values else None if None in values else True
        case Or(parts):
            values = [matches(part, row) for part in parts]
            return True if True in values else None if None in values else False
        case IsNull(column, negated):
            return (row[column] is None) != negated
    value = row[predicate.column]
    if value is None:
        return None
    match predicate:
        case Compare(_, op, other):
            return operators[op](_key(value), _key(other))
        case OneOf(_, values, negated):
            return (value in values) != negated
        case Prefix(_, prefix):
            return str(value).startswith(prefix)


def _key(value: int | str) -> Any:
    return value.encode() if isinstance(value, str) else value  # the engine compares text by its UTF-8 bytes


INTS = st.one_of(st.integers(-3, 12), st.sampled_from([INT64_MIN, INT64_MIN + 1, INT64_MAX - 1, INT64_MAX]), st.none())
SHORT = st.text("ab=!*>%_\u00e9\ud7ff\ue000\U0010ffff\0", max_size=3)
STRINGS = st.one_of(st.sampled_from(["", "a", "ab", "b", "!", "*", "=", ">"]), SHORT)
ROWS = st.fixed_dictionaries(dict.fromkeys(NUMBERS, INTS) | {name: st.one_of(STRINGS, st.none()) for name in TEXTS})
FILES = st.lists(st.lists(ROWS, max_size=4), min_size=1, max_size=5)
PROBES = st.one_of(st.integers(-4, 13), st.sampled_from([INT64_MIN - 1, INT64_MIN, INT64_MAX, INT64_MAX + 1]))
OPS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
LEAVES: st.SearchStrategy[Predicate] = st.one_of(
    st.just(Always()),
    st.just(Never()),
    st.builds(Compare, st.sampled_from(NUMBERS), OPS, PROBES),
    st.builds(Compare, st.sampled_from(TEXTS), OPS, STRINGS),
    st.builds(OneOf, st.sampled_from(NUMBERS), st.lists(PROBES, max_size=6).map(tuple), st.booleans()),
    st.builds(OneOf, st.sampled_from(TEXTS), st.lists(STRINGS, max_size=4).map(tuple), st.booleans()),
    st.builds(IsNull, st.sampled_from(NUMBERS + TEXTS), st.booleans()),
    st.builds(Prefix, st.sampled_from(TEXTS), SHORT),
)
PREDICATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(And, st.lists(inner, max_size=3).map(tuple)), st.builds(Or, st.lists(inner, max_size=3).map(tuple))
    ),
    max_leaves=8,
)


def kept(catalog: Catalog, files: Sequence[DataFile], predicate: Predicate) -> set[str]:
    known = {file.file_id for file in files}
    found = catalog.files(files[0].table, catalog.snapshot(), predicate)
    return known & {file.file_id for file in found}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=FILES, predicates=st.lists(PREDICATES, min_size=1, max_size=6))
def test_no_file_with_a_matching_row_is_pruned(
    catalog: Catalog, contents: list[list[Row]], predicates: list[Predicate]
) -> None:
    files = [data_file(rows) for rows in contents]
    catalog.publish(Publication(files=tuple(files)))
    for predicate in predicates:
        found = kept(catalog, files, predicate)
        for file, rows in zip(files, contents, strict=True):
            if any(matches(predicate, row) for row in rows):
                assert file.file_id in found, predicate


def _storable(rows: list[Row], leaf: Predicate) -> bool:
    texts = [str(value) for row in rows for value in row.values()]
    return not any("\0" in text for text in [*texts, repr(leaf).replace("\\x00", "\0")])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROWS, max_size=4), leaf=LEAVES)
def test_one_comparison_prunes_all_that_statistics_allow(catalog: Catalog, rows: list[Row], leaf: Predicate) -> None:
    """Sets tell everything of a column, ranges tell it up to the values between their ends."""
    file = data_file(rows)
    catalog.publish(Publication(files=(file,)))
    if isinstance(leaf, Always | Never):
        expected = leaf == Always()
    elif leaf.column in TEXTS:
        if not _storable(rows, leaf):
            return
        expected = any(matches(leaf, row) for row in rows)
    else:
        expected = any(matches(leaf, {leaf.column: value}) for value in _possible(file.ranges[leaf.column], leaf))
    assert kept(catalog, [file], leaf) == ({file.file_id} if expected else set())


def _possible(known: NumberRange, leaf: Predicate) -> set[int | None]:
    """Values that a column with this range can hold, as far as the predicate can tell them apart."""
    values: set[int | None] = {None} if known.has_null else set()
    if known.low is None or known.high is None:
        return values
    probes = leaf.values if isinstance(leaf, OneOf) else (leaf.value,) if isinstance(leaf, Compare) else ()
    near = {int(probe) + step for probe in probes for step in (-1, 0, 1)} | {known.low, known.high}
    return values | {value for value in near if known.low <= value <= known.high}


ROW: Row = {"ts": 10, "step_id": 5, "rank_id": None, "run_id": "r", "name": "n"}


def test_columns_without_statistics_and_values_of_another_type_prune_nothing(catalog: Catalog) -> None:
    file = data_file([ROW])
    bare = DataFile(file_id=f"f{next(_IDS)}", table="spans", path="bare", rows=1, size_bytes=1, ranges={}, sets={})
    catalog.publish(Publication(files=(file, bare)))
    both = {file.file_id, bare.file_id}
    for predicate in (
        Compare("track", "=", "x"),
        Compare("no_such_column", "=", 1),
        Compare("step_id", "=", "5"),
        Compare("name", "=", 5),
        OneOf("step_id", (7, "x")),
        OneOf("name", ("x", 7), negated=True),
        Prefix("step_id", "5"),
        Compare("sample_type", "=", "not a column of spans"),
    ):
        assert kept(catalog, [file, bare], predicate) == both, predicate
    for name in (*NUMBERS, "seq", "dur", *TEXTS, "host_id"):
        value = "x" if name in (*TEXTS, "host_id") else 77
        for leaf in (Compare(name, "=", value), Compare(name, "!=", value), IsNull(name), IsNull(name, negated=True)):
            assert bare.file_id in kept(catalog, [bare], leaf), leaf


def test_a_set_that_overflows_keeps_its_file_but_still_tells_of_nulls(catalog: Catalog) -> None:
    full = data_file([ROW | {"name": f"n{i:04}"} for i in range(MAX_SET_VALUES)])
    over = data_file([ROW | {"name": f"n{i:04}"} for i in range(MAX_SET_VALUES + 1)])
    long = data_file([ROW | {"name": "x" * 100_000}])
    catalog.publish(Publication(files=(full, over, long)))
    files = [full, over, long]
    open_sets = {over.file_id, long.file_id}
    assert kept(catalog, files, Compare("name", "=", "zzz")) == open_sets
    assert kept(catalog, files, Compare("name", "=", "n0000")) == {full.file_id} | open_sets
    assert kept(catalog, files, Prefix("name", "n00")) == {full.file_id} | open_sets
    assert kept(catalog, files, IsNull("name")) == set()
    assert kept(catalog, files, IsNull("name", negated=True)) == {file.file_id for file in files}


def test_lists_and_chains_beyond_every_limit_still_prune_roughly(catalog: Catalog) -> None:
    near, far = data_file([ROW]), data_file([ROW | {"step_id": 10**9, "name": "zz"}])
    catalog.publish(Publication(files=(near, far)))
    files = [near, far]
    steps = tuple(range(1, 20 * MAX_SPANS, 2))  # 5 is one of them
    assert kept(catalog, files, OneOf("step_id", steps)) == {near.file_id}
    assert kept(catalog, files, OneOf("step_id", steps, negated=True)) >= {far.file_id}
    names = tuple(f"n{i}" for i in range(MAX_LISTED + 1))
    assert kept(catalog, files, OneOf("name", ("n", *names))) == {near.file_id}
    assert kept(catalog, files, OneOf("name", names, negated=True)) == {near.file_id, far.file_id}
    chain: Predicate = Never()
    for step in range(300):  # a OR (b OR (c …)): as deep as a planner makes it of a long text
        chain = Or((Compare("step_id", "=", step), chain))
    assert kept(catalog, files, chain) == {near.file_id}
    many = And(tuple(Compare("step_id", "<", 100 + i) for i in range(3 * MAX_CONDITIONS)))
    assert kept(catalog, files, many) == {near.file_id}
    deep: Predicate = Compare("step_id", "=", 5)
    for _ in range(2000):
        deep = And((Or((deep, Never())), Always()))
    assert kept(catalog, files, deep) >= {near.file_id}


def test_a_long_list_leaves_its_widest_gaps_open(catalog: Catalog) -> None:
    clusters = tuple(start + 2 * i for start in range(0, MAX_SPANS * 1000, 1000) for i in range(10))
    inside, between = data_file([ROW | {"step_id": 1004}]), data_file([ROW | {"step_id": 1500}])
    catalog.publish(Publication(files=(inside, between)))
    assert kept(catalog, [inside, between], OneOf("step_id", clusters)) == {inside.file_id}


def test_files_come_by_path_without_statistics(tmp_path: Path) -> None:
    files = [data_file([ROW], "logs") for _ in range(3)]
    with closing(open_catalog(str(tmp_path / "c.db"))) as catalog:
        catalog.publish(Publication(files=tuple(reversed(files))))
        found = catalog.files("logs", catalog.snapshot(), Always())
    assert [file.path for file in found] == [file.path for file in files]
    assert [(file.rows, file.ranges, file.sets) for file in found] == [(1, {}, {})] * 3
