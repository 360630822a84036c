"""Which format an object has, by content; what is no telemetry at all; what a refused object looks like."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from lake.formats import (
    chrome,
    cpuprofile,
    flight_recorder,
    hwlogs,
    manifest,
    nccl_json,
    openmetrics,
    otlp,
    perf_script,
    perfetto,
    pprof,
    scheduler,
    slurm,
    speedscope,
    stacks,
    stdout,
    timeline,
    topology,
)
from lake.formats.base import Format
from lake.formats.otlp import profiles as otlp_profiles
from lake.formats.texts import looks_like_text

FORMATS: Final[tuple[Format, ...]] = (
    timeline.FORMAT,
    flight_recorder.FORMAT,
    topology.FORMAT,
    manifest.FORMAT,
    scheduler.FORMAT,
    *nccl_json.FORMATS,
    *otlp.FORMATS,
    *otlp_profiles.FORMATS,
    pprof.FORMAT,
    perfetto.FORMAT,
    speedscope.FORMAT,
    cpuprofile.FORMAT,
    *chrome.FORMATS,
    perf_script.FORMAT,
    *stacks.FORMATS,
    *openmetrics.FORMATS,
    slurm.FORMAT,
    *hwlogs.FORMATS,
    stdout.FORMAT,
)
"""All formats, the most specific first; plain text comes last."""

_IGNORED_NAMES: Final = {
    "truth.json": "the answer for checking, never read",
    "index.tsv": "an index of other files",
    "provenance.tsv": "an index of other files",
    "makefile": "no telemetry",
}
_DOCUMENTATION: Final = re.compile(r"^(readme|license|licence|notice|copying|changelog|authors)([._-].*)?$")
_IGNORED_SUFFIXES: Final = frozenset(
    {
        *(".py", ".pyc", ".sh", ".js", ".css", ".html", ".ipynb"),
        *(".yaml", ".yml", ".toml", ".cfg", ".ini", ".lock", ".sha256", ".crc"),
        *(".pt", ".pth", ".safetensors"),
    }
)
_JSON: Final = re.compile(rb"^\s*(\{\s*[\"}]|\[\s*[\[{\"\]])")
_NOT_A_LOG: Final = re.compile(r"\.(json|jsonl|ndjson|pb|bin|pickle|pkl|parquet|pftrace|perfetto-trace|raw|collapsed)$")
"""Names of structured files: text in one of them that is not what the name says is a bad file, not a log."""
_TEXT_FORMS: Final = (
    (_JSON, "JSON of no known form"),
    (re.compile(rb"^\s*<(\?xml|!doctype|html)", re.I), "XML or HTML"),
    (re.compile(rb"^\S.*\s\d+(/\d+)?\s+(\[\d+\]\s+)?\d+\.\d+:.*\n\s+[0-9a-f]+ ", re.M), "`perf script` output"),
    (re.compile(rb"^(version: 1\n|events: |creator: callgrind)", re.M), "a callgrind profile"),
    (
        re.compile(rb"^(heap profile:|--- (heap|contention|growth|thread)z|(goroutine|threadcreate) profile:)"),
        "a legacy text profile of gperftools, Go or Java: convert it with `pprof -proto`",
    ),
    (re.compile(rb"^@ \S+ \[\d+ samples\]"), "a pmcstat callgraph"),
)
_BINARY_FORMS: Final = (
    (b"\x80", "a Python pickle"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x7fELF", "an ELF binary"),
    (b"ARROW1", "an Arrow file"),
    (b"\x93NUMPY", "a numpy array"),
    (b"SQLite format 3", "an SQLite database"),
    (b"FLR\x00", "a Java Flight Recorder file"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a PNG image"),
    (b"\n", "protobuf of no known form (a Perfetto trace?)"),
)
_CPU_PROFILE: Final = re.compile(
    rb"^(\0{4}\x03\0{3}[\0\x01]\0{3}|\0{7}\x03\0{3}[\0\x01]|\0{8}\x03\0{7}[\0\x01]\0{7}|\0{15}\x03\0{7}[\0\x01])"
)
"""Header of a gperftools CPU profile: the words 0, 3 and a version, of 4 or 8 bytes in either byte order."""


def recognise(name: str, head: bytes) -> Format | None:
    """The format of an object by its first 64 KiB after decompression, None when it has none of ours.

    The name, without a compression ending, decides only where content cannot.
    """
    plain = re.sub(r"\.(gz|zst|bz2|xz)$", "", name)
    found = next((form for form in FORMATS if form.sniff(plain, head)), None)
    if found is stdout.FORMAT and (_NOT_A_LOG.search(plain.lower()) or _text_form(plain, head) is not None):
        return None
    return found


def ignored(name: str, head: bytes = b"") -> str | None:
    """Why an object is no telemetry (documentation, indexes, hidden files, programs), None when it may be.

    The name is enough, except for programs without a suffix.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    base = re.sub(r"\.(gz|zst|bz2|xz)$", "", path.name.lower())
    if any(part.startswith(".") and part.strip(".") for part in path.parts):
        return "a hidden file"
    if base in _IGNORED_NAMES:
        return _IGNORED_NAMES[base]
    if _DOCUMENTATION.match(base) or PurePosixPath(base).suffix in (".md", ".rst"):
        return "documentation"
    if PurePosixPath(base).suffix in _IGNORED_SUFFIXES or head.startswith(b"#!"):
        return "no telemetry"
    return None


def looks_like(head: bytes) -> str:
    """What an object that no format takes looks like, for the message that refuses it."""
    if not head:
        return "an empty file"
    if looks_like_text(head):
        return _text_form("", head) or "plain text"
    if _CPU_PROFILE.match(head):
        return "a legacy binary CPU profile of gperftools: convert it with `pprof -proto`"
    return next((what for magic, what in _BINARY_FORMS if head.startswith(magic)), "binary data of no known form")


def _text_form(name: str, head: bytes) -> str | None:
    """A known form of text that is not the lines of a log; a log may be lines of JSON."""
    found = next((what for pattern, what in _TEXT_FORMS if pattern.search(head[:4096])), None)
    is_log = PurePosixPath(name.lower()).suffix in (".log", ".out", ".err")
    return None if is_log and _JSON.match(head) else found
