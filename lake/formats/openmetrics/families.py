"""Expositions as families of samples, and the rules that OpenMetrics puts on them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Final

from lake.errors import Invalid
from lake.formats.base import Problem
from lake.formats.openmetrics.text import Sample, read_sample, unescaped

_SUFFIXES: Final = {
    "counter": ("_total", "_created"),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum", "_created"),
    "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
    "summary": ("", "_count", "_sum", "_created"),
    "info": ("_info",),
    "stateset": ("",),
    "unknown": ("",),
}
_LOOSE_SUFFIXES: Final = {
    **dict.fromkeys(("counter", "gauge", "untyped", "unknown", "info", "stateset"), ("",)),
    "histogram": ("_bucket", "_count", "_sum"),
    "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
    "summary": ("", "_count", "_sum"),
}
_COUNTING: Final = ("_total", "_sum", "_count", "_bucket", "_gcount")
_MAX_PROBLEMS: Final = 20


@dataclass(slots=True)
class Family:
    """A metric family; metadata is None where the exposition has none."""

    name: str
    kind: str | None = None
    help: str | None = None
    unit: str | None = None
    samples: list[Sample] = field(default_factory=list)

    @property
    def type(self) -> str:
        """Its type, `unknown` where none is given."""
        return self.kind or "unknown"

    def owned(self, suffixes: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Names its samples may have."""
        return tuple(self.name + suffix for suffix in suffixes.get(self.type, ("",)))


def read_strict(text: str) -> list[Family]:
    """The families of an OpenMetrics exposition.

    Raises:
        Invalid: it breaks a rule anywhere, which makes the whole exposition wrong; says which and in what line.
    """
    lines = text.removesuffix("\n").split("\n")
    if lines[-1] != "# EOF":
        raise Invalid("openmetrics text must end with `# EOF`")
    families: list[Family] = []
    taken: set[str] = set()
    current: Family | None = None
    for number, line in enumerate(lines[:-1], 1):
        try:
            if line.startswith("#"):
                current = _metadata(line, current, families)
            else:
                sample = read_sample(line, strict=True)
                if current is None or sample.name not in current.owned(_SUFFIXES):
                    current = Family(sample.name)
                    families.append(current)
                _check_sample(sample, current)
                current.samples.append(sample)
        except Invalid as error:
            raise Invalid(f"line {number}: {error}") from error
    for family in families:
        names = {family.name, *family.owned(_SUFFIXES)}
        if names & taken:
            raise Invalid(f"family {family.name} clashes with an earlier one of the same names")
        taken |= names
        try:
            _check_family(family)
        except Invalid as error:
            raise Invalid(f"family {family.name}: {error}") from error
    return families


def _metadata(line: str, current: Family | None, families: list[Family]) -> Family:
    parts = line.split(" ", 3)
    if len(parts) < 4 or parts[0] != "#" or parts[1] not in ("TYPE", "HELP", "UNIT") or not parts[2]:
        raise Invalid("neither a sample nor `# TYPE`, `# HELP` or `# UNIT` with a name and a text")
    _, word, name, text = parts
    if current is None or current.name != name:
        current = Family(name)
        families.append(current)
    if current.samples:
        raise Invalid(f"metadata of {name} after its samples")
    if getattr(current, {"TYPE": "kind", "HELP": "help", "UNIT": "unit"}[word]) is not None:
        raise Invalid(f"second `# {word}` of {name}")
    if word == "TYPE":
        if text not in _SUFFIXES:
            raise Invalid(f"{text!r} is no metric type")
        current.kind = text
    elif word == "HELP":
        current.help = unescaped(text)
    else:
        if text and not name.endswith(f"_{text}"):
            raise Invalid(f"name {name} does not end with its unit {text!r}")
        current.unit = text
    if current.unit and current.type in ("info", "stateset"):
        raise Invalid(f"type {current.type} has no unit")
    return current


def _check_sample(sample: Sample, family: Family) -> None:
    suffix, kind, value = sample.name[len(family.name) :], family.type, sample.number
    labels = dict(sample.labels)
    if suffix == "_bucket" and kind.endswith("histogram"):
        bound = labels.get("le", "")
        if bound != "+Inf" and not _finite(bound):
            raise Invalid(f"bucket bound {bound!r}")
    if kind == "summary" and not suffix and not 0 <= (_finite(labels.get("quantile", "")) or (-1.0,))[0] <= 1:
        raise Invalid("a summary's sample without a quantile of 0 to 1")
    if kind == "summary" and not suffix and value < 0:
        raise Invalid("a negative quantile value")
    if kind == "stateset" and (family.name not in labels or value not in (0, 1)):
        raise Invalid("a state has a label of the family's name and is 0 or 1")
    if kind == "info" and value != 1:
        raise Invalid("the value of an info is 1")
    if suffix in (*_COUNTING, "_gsum") and math.isnan(value):
        raise Invalid(f"NaN in {suffix}")
    if suffix in _COUNTING and value < 0:
        raise Invalid(f"negative value in {suffix}")
    allowed = (suffix == "_bucket" and kind.endswith("histogram")) or (suffix == "_total" and kind == "counter")
    if sample.exemplar and not allowed:
        raise Invalid(f"exemplar on a sample of type {kind}")


def _finite(text: str) -> tuple[float] | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return (number,) if math.isfinite(number) and "_" not in text else None


def _group(sample: Sample, family: Family) -> tuple[tuple[str, str], ...]:
    apart = {"summary": "quantile", "stateset": family.name}.get(family.type, "le")
    if family.type not in ("summary", "stateset", "histogram", "gaugehistogram"):
        return tuple(sorted(sample.labels))
    return tuple(sorted(label for label in sample.labels if label[0] != apart))


def _check_family(family: Family) -> None:
    """Groups of samples stand together, their times do not go back, and histograms add up."""
    seen: set[tuple[tuple[str, str], ...]] = set()
    last: Sample | None = None
    group: tuple[tuple[str, str], ...] | None = None
    points: dict[tuple[object, Decimal | None], list[Sample]] = {}
    for sample in family.samples:
        now = _group(sample, family)
        if now != group and now in seen:
            raise Invalid("samples of one metric do not stand together")
        if now == group and last is not None:
            if (sample.time is None) != (last.time is None):
                raise Invalid("samples of one metric with and without a time")
            if sample.time is not None and last.time is not None and sample.time < last.time and family.type != "info":
                raise Invalid("times go backwards")
        group, last = now, sample
        seen.add(now)
        points.setdefault((now, sample.time), []).append(sample)
    if family.type.endswith("histogram"):
        for samples in points.values():
            _check_histogram(samples, len(family.name))


def _check_histogram(samples: list[Sample], prefix: int) -> None:
    named = {sample.name[prefix:]: sample.number for sample in samples}
    buckets = [
        (float(dict(sample.labels)["le"]), sample.number) for sample in samples if sample.name.endswith("_bucket")
    ]
    if set(named) == {"_created"}:
        return
    count = named.get("_count", named.get("_gcount"))
    total = named.get("_sum", named.get("_gsum"))
    if not buckets or not math.isinf(buckets[-1][0]):
        raise Invalid("no last bucket with the bound +Inf")
    if any(b[0] <= a[0] or b[1] < a[1] for a, b in pairwise(buckets)):
        raise Invalid("buckets out of order")
    if (count is None) != (total is None):
        raise Invalid("count without sum, or sum without count")
    if count is not None and count != buckets[-1][1]:
        raise Invalid("the last bucket is not the count")
    negative = buckets[0][0] < 0
    if negative and "_sum" in named:
        raise Invalid("a sum although there are negative buckets")
    if not negative and named.get("_gsum", 0) < 0:
        raise Invalid("a negative sum although no bucket is")


def read_loose(text: str, problems: list[Problem]) -> list[Family]:
    """The families of a text exposition 0.0.4; a line that is no sample is left out alone and reported."""
    families: dict[str, Family] = {}
    current: Family | None = None
    bad = 0
    for number, line in _spoken(text):
        parts = line.split(None, 3) if line.startswith("#") else []
        if parts:
            if len(parts) >= 3 and parts[0] == "#" and parts[1] in ("TYPE", "HELP"):
                current = families.setdefault(parts[2], Family(parts[2]))
                _describe(current, parts[1], parts[3] if len(parts) > 3 else "")
            continue
        try:
            sample = read_sample(line, strict=False)
        except Invalid as error:
            bad += 1
            if bad <= _MAX_PROBLEMS:
                problems.append(Problem(message=f"line {number} was left out: {error}", rejected=1))
            continue
        if current is None or sample.name not in current.owned(_LOOSE_SUFFIXES):
            current = families.setdefault(sample.name, Family(sample.name))
        current.samples.append(sample)
    if bad > _MAX_PROBLEMS:
        rest = bad - _MAX_PROBLEMS
        problems.append(Problem(message=f"{rest} further lines were left out", rejected=rest))
    return list(families.values())


def _describe(family: Family, word: str, text: str) -> None:
    if word == "TYPE" and text.strip() in _LOOSE_SUFFIXES:
        family.kind = text.strip()
    elif word == "HELP":
        family.help = unescaped(text)


def _spoken(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip(" \t\r")
        if stripped:
            yield number, stripped
