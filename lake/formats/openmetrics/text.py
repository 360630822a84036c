"""The text expositions of Prometheus, line by line: metadata, samples, labels, exemplars.

OpenMetrics 1.0 (https://prometheus.io/docs/specs/om/open_metrics_spec/) is strict in blanks and commas and has times in
seconds; the older text format 0.0.4 is lenient and has milliseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

from lake.errors import Invalid

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"')
_LOOSE_LABEL: Final = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]|\\.)*)"[ \t]*')
_BLANKS: Final = re.compile(r"[ \t]+")
_NUMBER: Final = re.compile(
    r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,5})?|[+-]?(?:[iI]nf|INF|[iI]nfinity)|[nN]a[nN]|NAN"
)
_TIME: Final = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2})?")
_TIME_LOOSE: Final = re.compile(r"-?\d{1,40}")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPED: Final = {"n": "\n", '"': '"', "\\": "\\"}
_INT64: Final = 1 << 63

Labels = tuple[tuple[str, str], ...]


class Exemplar(NamedTuple):
    """An example behind a sample; `time_ns` is None where it has none."""

    labels: Labels
    value: str
    time_ns: int | None


@dataclass(slots=True)
class Sample:
    """One line of an exposition: `value` as it is written, `time` as it is written or None."""

    name: str
    labels: Labels
    value: str
    time: Decimal | None = None
    exemplar: Exemplar | None = None

    @property
    def number(self) -> float:
        """The value as a double."""
        return float(self.value)


def unescaped(text: str) -> str:
    r"""Text with `\\`, `\"` and `\n` read; another escape stays as it is."""
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text) if "\\" in text else text


def read_labels(line: str, position: int, strict: bool) -> tuple[Labels, int]:
    """The labels that begin behind a `{` at `position`, and the position behind their `}`.

    Raises:
        Invalid: they are no labels, or one occurs twice.
    """
    pattern = _LABEL if strict else _LOOSE_LABEL
    labels: list[tuple[str, str]] = []
    while True:
        if not strict:
            position = _past_blanks(line, position)
        if line.startswith("}", position) and (not strict or not labels):
            break
        match = pattern.match(line, position)
        if match is None:
            raise Invalid(f"no label at column {position + 1}")
        labels.append((match[1], unescaped(match[2])))
        position = match.end()
        if line.startswith("}", position):
            break
        if not line.startswith(",", position):
            raise Invalid(f"no comma between labels at column {position + 1}")
        position += 1
    if len({name for name, _ in labels}) < len(labels):
        raise Invalid("a label occurs twice")
    return tuple(labels), position + 1


def read_sample(line: str, strict: bool) -> Sample:
    """The sample of a line.

    Raises:
        Invalid: it is none; says what is missing.
    """
    match = _NAME.match(line)
    if match is None:
        raise Invalid("no metric name")
    name, position = match[0], match.end()
    labels: Labels = ()
    if not strict:
        position = _past_blanks(line, position)
    if line.startswith("{", position):
        labels, position = read_labels(line, position + 1, strict)
    rest, exemplar = line[position:], None
    if strict and " # " in rest:
        rest, _, example = rest.partition(" # ")
        exemplar = _exemplar(example)
    words = rest.split(" ") if strict else ["", *rest.split()]
    if words[0] or not 2 <= len(words) <= 3:
        raise Invalid("not a value and perhaps a time after the name")
    if not _NUMBER.fullmatch(words[1]):
        raise Invalid(f"{words[1]!r} is no value")
    return Sample(name, labels, words[1], _time(words[2], strict) if len(words) == 3 else None, exemplar)


def _past_blanks(line: str, position: int) -> int:
    match = _BLANKS.match(line, position)
    return match.end() if match else position


def _time(text: str, strict: bool) -> Decimal:
    """Seconds since 1970."""
    if not (_TIME if strict else _TIME_LOOSE).fullmatch(text):
        raise Invalid(f"{text!r} is no time")
    try:
        return Decimal(text) if strict else Decimal(text) / 1000
    except InvalidOperation as error:
        raise Invalid(f"{text!r} is no time") from error


def nanoseconds(seconds: Decimal | None) -> int | None:
    """Nanoseconds since 1970, None where they do not fit 64 bits."""
    if seconds is None or abs(seconds) > 10**10:
        return None
    whole = int(seconds * 1_000_000_000)
    return whole if -_INT64 <= whole < _INT64 else None


def _exemplar(text: str) -> Exemplar:
    if not text.startswith("{"):
        raise Invalid("exemplar without labels")
    labels, position = read_labels(text, 1, strict=True)
    if sum(len(name) + len(value) for name, value in labels) > 128:
        raise Invalid("labels of an exemplar have more than 128 characters")
    words = text[position:].split(" ")
    if words[0] or not 2 <= len(words) <= 3 or not _NUMBER.fullmatch(words[1]):
        raise Invalid("exemplar without a value")
    return Exemplar(labels, words[1], nanoseconds(_time(words[2], strict=True)) if len(words) == 3 else None)
