"""Verdicts of the OpenMetrics conformance suite, and counts of the case collection (`prometheus_client`)."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Source
from lake.formats.openmetrics import FORMATS
from lake.formats.recognise import recognise
from lake.records import Identity
from lake.schemas import TABLES
from tests.paths import cases

STRICT, LOOSE, DELIMITED, WRITE = FORMATS


def decoded(text: str, form: Any = STRICT) -> Decoded:
    return form.decode(Source.of("metrics", text.encode(), Identity(run_id="r")))


def rows(result: Decoded) -> list[dict[str, Any]]:
    return [
        {
            key: value
            for key, value in row.items()
            if value is not None and key not in ("source", "evidence_ref", "run_id")
        }
        for row in result.tables["metrics"].to_pylist()
    ]


def test_every_sample_is_a_row() -> None:
    text = (
        "# TYPE a_seconds histogram\n# UNIT a_seconds seconds\n# HELP a_seconds how \\n long\n"
        'a_seconds_bucket{le="1.0",rank="3"} 2 1.5 # {trace_id="0af7",b="x"} 0.5 1.25\n'
        'a_seconds_bucket{le="+Inf",rank="3"} 4 1.5\na_seconds_count{rank="3"} 4 1.5\na_seconds_sum{rank="3"} 6.5 1.5\n'
        "# TYPE g gauge\ng NaN\n# EOF\n"
    )
    assert STRICT.sniff("x", text.encode())
    result = decoded(text)
    assert result.tables["metrics"].schema == TABLES["metrics"].schema
    first, _, count, total, gauge = rows(result)
    exemplar = first.pop("exemplars")[0]
    assert first.pop("ts").isoformat() == "1970-01-01T00:00:01.500000+00:00"
    assert first == {
        "name": "a_seconds_bucket",
        "rank_id": 3,
        "description": "how \n long",
        "unit": "seconds",
        "kind": "sum",
        "temporality": "cumulative",
        "is_monotonic": True,
        "value": 2.0,
        "value_int": 2,
        "attributes": [("prometheus.type", "histogram"), ("le", "1.0"), ("rank", "3")],
        "attribute_types": "sss",
    }
    assert (exemplar["value"], exemplar["ts"].isoformat()) == (0.5, "1970-01-01T00:00:01.250000+00:00")
    assert (exemplar["trace_id"], exemplar["attributes"]) == ("0af7", [("trace_id", "0af7"), ("b", "x")])
    assert (count["name"], total["value"], "value_int" in total) == ("a_seconds_count", 6.5, False)
    assert (gauge["kind"], math.isnan(gauge["value"])) == ("gauge", True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a 1\n", "must end with"),
        ("a 1\n# EOF\n# EOF\n", "line 2: neither a sample"),
        ("\na 1\n# EOF\n", "line 1: no metric name"),
        ('a{b="1",} 1\n# EOF\n', "line 1: no label at column 9"),
        ('a{b="1",b="2"} 1\n# EOF\n', "a label occurs twice"),
        ("a  1\n# EOF\n", "'' is no value"),
        ("# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\na 2\n# EOF\n", "family a clashes"),
        ("# TYPE a counter\na 1\n# EOF\n", "family a clashes"),
        ('# TYPE a gauge\na{b="1"} 1\na{b="2"} 1\na{b="1"} 2\n# EOF\n', "do not stand together"),
    ],
)
def test_what_breaks_a_rule_is_refused_whole(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        decoded(text)


def test_the_older_text_format_is_lenient() -> None:
    text = (
        "# HELP up is \\\\ it\n# TYPE up untyped\n# a comment\n\nup { a = \"1\" , b=\"x\\ny\", } 1 1500\n"
        "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\",Hostname=\"node-7\"} 1e2\nbad{ 1\nworse x\nup 0x1\n"
    )  # fmt: skip
    assert LOOSE.sniff("x", text.encode())
    assert not STRICT.sniff("x", text.encode())
    result = decoded(text, LOOSE)
    first, second = rows(result)
    assert dict(first["attributes"]) == {"prometheus.type": "untyped", "a": "1", "b": "x\ny"}
    assert (first["ts"].isoformat(), first["description"]) == ("1970-01-01T00:00:01.500000+00:00", "is \\ it")
    assert (second["gpu_uuid"], second["host_id"], second["value"]) == ("GPU-1", "node-7", 100.0)
    assert [problem.message.split(":")[0] for problem in result.problems] == [
        f"line {n} was left out" for n in (7, 8, 9)
    ]
    with pytest.raises(Invalid, match="nothing in it is a sample"):
        decoded("# TYPE a gauge\nbad bad\n", LOOSE)


def test_long_lines_take_no_time_out_of_proportion() -> None:
    for tail in ("1" * 200_000 + "x", "." + "1" * 200_000 + "x", " " * 200_000 + "x", "{" + " " * 200_000 + "a"):
        with pytest.raises(Invalid):
            decoded(f"# TYPE a gauge\na {tail}\n", LOOSE)
        with pytest.raises(Invalid):
            decoded(f"a {tail}\n# EOF\n")


def test_conformance_verdicts() -> None:
    wrong = []
    files = sorted(cases("openmetrics_conformance").glob("*-metrics"))
    for path in files:
        verdict = json.loads(path.with_name(path.name.replace("-metrics", "-test.json")).read_text())["shouldParse"]
        data = path.read_bytes()
        form = recognise(path.name, data)
        assert form is STRICT, path.name
        try:
            form.decode(Source.of(path.name, data))
        except Invalid:
            wrong += [path.name] * verdict
        else:
            wrong += [path.name] * (not verdict)
    assert files
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "families", "samples"),
    [
        ("dlrover__hang-xpu_timer_metric_all", 13, 177),
        ("dlrover__normal-xpu_timer_metric_0", 13, 177),
        ("promcommon__expfmt-text", 37, 248),
    ],
)
def test_expositions_of_other_projects(name: str, families: int, samples: int) -> None:
    data = cases(f"prometheus/{name}").read_bytes()
    form = recognise(name, data[: 1 << 16])
    assert form is LOOSE
    result = form.decode(Source.of(name, data))
    assert result.problems == []
    found = rows(result)
    assert len(found) == samples
    named = {row["name"] for row in found}
    summaries = {name.removesuffix("_sum") for name in named if name.endswith("_sum")}
    owned = {base + suffix for base in summaries for suffix in ("_sum", "_count", "_bucket")}
    assert len((named - owned) | summaries) == families
    if "hang" in name:
        hangs = {row["rank_id"]: row["value"] for row in found if row["name"] == "XPU_TIMER_COMMON_HANG"}
        assert set(hangs.values()) == {1.0}


def test_other_text_is_no_exposition() -> None:
    for text in ("step 1 2.5\n", "# a heading\n", '{"a": "# TYPE b"}', "<html>\n# HELP x", ""):
        assert not any(form.sniff("x", text.encode()) for form in FORMATS)


@given(st.text('ab{}="\\#, 19.e+-_\n', max_size=60), st.booleans())
def test_any_text(text: str, ended: bool) -> None:
    for form in FORMATS:
        with contextlib.suppress(LakeError):
            decoded(text + ("\n# EOF\n" if ended else ""), form)


def test_protobuf_and_text_agree() -> None:
    text = decoded(cases("prometheus/promcommon__expfmt-text").read_text(), LOOSE)
    data = cases("prometheus/promcommon__expfmt-protobuf").read_bytes()
    assert recognise("x", data[: 1 << 16]) is DELIMITED
    result = DELIMITED.decode(Source.of("x", data))
    assert result.problems == []

    def found(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
        return {(r["name"], frozenset(r["attributes"]), r["kind"], repr(r["value"]), r["description"]) for r in rows}

    assert len(rows(result)) == 248
    assert found(rows(result)) == found(rows(text))
    cut = DELIMITED.decode(Source.of("x", data[:-5]))
    assert (cut.salvaged, cut.rejected) == (True, 1)
    assert 200 < cut.tables["metrics"].num_rows < 248


def test_a_remote_write_request() -> None:
    data = cases("prometheus/greptime__write_request.pb.data").read_bytes()
    assert recognise("x", data[: 1 << 16]) is WRITE
    table = WRITE.decode(Source.of("x", data)).tables["metrics"]
    # cases/README.md: 1,148 series with a sample each
    assert (table.num_rows, table["ts"].null_count, table["name"].null_count) == (1148, 0, 0)
    with pytest.raises(Invalid, match="not a remote-write request"):
        WRITE.decode(Source.of("x", data[:-3]))


@given(st.binary(max_size=80), st.integers(0, 60))
def test_any_bytes(data: bytes, position: int) -> None:
    family = b"\x1d\x0a\x01a\x12\x01h\x18\x01\x22\x13\x0a\x06\x0a\x01b\x12\x01c\x12\x09\x09\0\0\0\0\0\0\xf0\x3f"
    for some in (data, family[:position] + data, family + data):
        for form in (DELIMITED, WRITE):
            form.sniff("x", some)
            with contextlib.suppress(LakeError):
                form.decode(Source.of("x", some))
