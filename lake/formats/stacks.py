"""Collapsed stacks, one a line: `root;child;leaf count` (Gregg's stackcollapse), and py-spy's `raw` form of it.

py-spy begins a line with `process …` and `thread (5213): MainThread` and writes frames as `function (file:line)`.
Every distinct line is parsed once, every distinct frame once.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import attributes_of, conform, fill_identity
from lake.formats.frames import Frame, stack_id, stacks_table
from lake.formats.texts import looks_like_text, split_lines

PYSPY: Final = "pyspy"
COLLAPSED: Final = "collapsed"

_LINE: Final = r"^(?P<stack>.*\S)\s+(?P<count>\d{1,18})\s*$"
_CONTEXT: Final = r"^(?:process \d+:|thread \(\d+\)(?::|;|$)|thread \(0x[0-9a-fA-F]+\))"
_FRAME: Final = re.compile(r"^(?P<function>.*?) \((?P<file>[^()]*?)(?::(?P<line>\d{1,9}))?\)$", re.DOTALL)
_PYSPY_LINE: Final = re.compile(r"^(?:process \d+:|thread \()|\([^();]+\.pyx?:\d+\)(?:;| \d+$)")
_NOT_STACKS: Final = re.compile(
    r"^\s*[0-9a-f]{4,16} \S+|^\S+\s+\d+(/\d+)?\s+(\[\d+\]\s+)?\d+\.\d+:|^(#|@ |events:|version:)", re.M
)


def _sniff(name: str, head: bytes) -> str | None:
    """`pyspy` or `collapsed` when most lines are stacks with a count, None otherwise."""
    if not head or not looks_like_text(head):
        return None
    lines = [line for line in split_lines(head).values.to_pylist() if line.strip()]
    if len(head) >= 1 << 16:
        lines = lines[:-1] or lines
    samples = [line for line in lines if _has_count(line)]
    if not samples or len(samples) * 2 < len(lines) or _NOT_STACKS.search("\n".join(lines[:200])):
        return None
    if sum(1 for line in samples if _PYSPY_LINE.search(line)) * 2 > len(samples):
        return PYSPY
    stacked = sum(";" in line for line in samples)
    named = bool(re.search(r"collapse|\.folded$|\.raw$", name.lower()))
    return COLLAPSED if stacked * 2 > len(samples) or named else None


def _has_count(line: str) -> bool:
    stack, _, count = line.rstrip().rpartition(" ")
    return bool(stack.strip()) and count.isascii() and count.isdigit() and len(count) <= 18


def decode(source: Source) -> Decoded:
    """One `samples` row a line and one `stacks` row a distinct stack.

    `value` is the line's count, `sample_type` cpu, `unit` samples, `thread` what py-spy names; `ts` and `dur` are
    null: the form has no times. Lines that are no stack are reported and left out; blank lines say nothing.

    Raises:
        Invalid: no line of it is a stack with a count.
    """
    name = _sniff(source.name, bytes(source.data[: 1 << 16])) or COLLAPSED
    lines = split_lines(source.data)
    match = pc.extract_regex(lines.values, _LINE)
    texts = pc.struct_field(match, "stack")
    good = pc.is_valid(texts)
    blank = pc.equal(pc.utf8_trim_whitespace(lines.values), "")
    bad = pc.indices_nonzero(pc.and_not(pc.invert(good), blank)).to_numpy()
    rows = pc.sum(good).as_py() or 0
    if not rows:
        raise Invalid(f"none of {len(lines.values)} lines is a stack with a count, e.g. `main;run;step 12`")
    decoded = Decoded(identity=source.identity)
    if lines.invalid:
        message = f"{lines.invalid} bytes are not valid text, replaced by U+FFFD; the raw object keeps them"
        decoded.problems.append(Problem(message=message))
    if len(bad):
        message = f"{len(bad)} lines are no stack with a count, left out (first: line {bad[0] + 1})"
        decoded.problems.append(Problem(message=message, rejected=len(bad)))
    encoded = pc.dictionary_encode(texts.filter(good))
    parsed = _Stacks(encoded.dictionary, name)
    columns: dict[str, Any] = {
        "source": name,
        "evidence_ref": source.evidence_ref,
        "value": pc.struct_field(match, "count").filter(good).cast(pa.int64()),
        "sample_type": "cpu",
        "unit": "samples",
        "stack_id": parsed.ids.take(encoded.indices),
        "thread": parsed.threads.take(encoded.indices),
    }
    process = parsed.processes.take(encoded.indices)
    columns["attributes"], columns["attribute_types"] = attributes_of({"process": ("s", process)}, rows)
    fill_identity(columns, source.identity)
    decoded.tables["samples"] = conform("samples", columns, rows)
    decoded.tables["stacks"] = stacks_table(parsed.frames, parsed.stacks, source=name, evidence_ref=source.evidence_ref)
    return decoded


class _Stacks:
    """Distinct lines taken apart: per line its stack id, thread and process; the distinct frames and stacks."""

    def __init__(self, texts: pa.StringArray, name: str) -> None:
        parts = pc.split_pattern(texts, ";")
        encoded = pc.dictionary_encode(pc.utf8_trim_whitespace(parts.flatten()))
        words = encoded.dictionary.to_pylist()
        self.frames = [_frame(word, name) for word in words]
        octets = [frame.encoded() for frame in self.frames]
        context = pc.match_substring_regex(encoded.dictionary, _CONTEXT).to_pylist() if name == PYSPY else None
        indices, offsets = encoded.indices.to_pylist(), parts.offsets.to_pylist()
        self.stacks: dict[str, list[int]] = {}
        ids, threads, processes = [], [], []
        for start, end in itertools.pairwise(offsets):
            begin = start
            while context and begin < end and context[indices[begin]]:
                begin += 1
            stack = indices[begin:end]
            found = stack_id([octets[index] for index in stack])
            self.stacks.setdefault(found, stack)
            ids.append(found)
            labels = [words[index] for index in indices[start:begin]]
            threads.append(_first(labels, "thread") if labels else None)
            processes.append(_first(labels, "process") if labels else None)
        self.ids = pa.array(ids, pa.string())
        self.threads = pa.array(threads, pa.string())
        self.processes = pa.array(processes, pa.string())


def _first(labels: list[str], word: str) -> str | None:
    return next((label for label in labels if label.startswith(word)), None)


def _frame(word: str, name: str) -> Frame:
    match = _FRAME.match(word) if name == PYSPY else None
    if match is None:
        return Frame(function=word)
    line = match["line"]
    return Frame(function=match["function"], file=match["file"], line=None if line is None else int(line))


FORMATS: Final = tuple(
    Format(name=form, sniff=lambda name, head, form=form: _sniff(name, head) == form, decode=decode)  # type: ignore[misc]
    for form in (PYSPY, COLLAPSED)
)
