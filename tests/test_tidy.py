"""The style rules, as a test: import direction, sizes, docstrings, fences. Exceptions are listed by name."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

LAYERS = {
    "errors": 0,
    "settings": 0,
    "schemas": 0,
    "records": 0,
    "predicates": 0,
    "xids": 0,
    "store": 1,
    "parquet": 2,
    "formats": 2,
    "catalog": 2,
    "udf": 2,
    "ingest": 3,
    "query": 3,
    "embedded": 4,
    "server": 4,
    "client": 4,
    "cli": 5,
}
FORBIDDEN = {
    ("ingest", "query"),
    ("ingest", "udf"),
    ("parquet", "formats"),
    ("parquet", "catalog"),
    ("formats", "parquet"),
    ("formats", "catalog"),
    ("formats", "store"),
    ("formats", "udf"),
    ("catalog", "formats"),
    ("catalog", "parquet"),
    ("catalog", "udf"),
    ("catalog", "store"),
    ("udf", "catalog"),
    ("udf", "formats"),
    ("udf", "parquet"),
    ("udf", "store"),
    ("query", "ingest"),
    ("embedded", "udf"),
    ("cli", "udf"),
}
"""Pairs that the layers alone would allow (or that are worth naming)."""

FENCES = {
    "sqlalchemy": {"catalog"},
    "alembic": {"catalog"},
    "psycopg": {"catalog"},
    "datafusion": {"query"},
    "opentelemetry": {"formats"},
    "google": {"formats"},
    "fsspec": {"store"},
    "s3fs": {"store"},
    "socket": {"server", "client"},
}
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_POSITIONAL = 5

LONG_MODULES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()


def sources() -> list[Path]:
    return sorted((ROOT / "lake").rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def part(path: Path) -> str:
    """The box a module belongs to: the first name below `lake`."""
    relative = path.relative_to(ROOT / "lake")
    return relative.parts[0].removesuffix(".py") if relative.parts[0] != "__init__.py" else "__init__"


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
            if node.module == "lake":
                names |= {f"lake.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_module(path: Path) -> None:
    problems = [
        *import_problems(path),
        *size_problems(path),
        *docstring_problems(path),
    ]
    assert not problems, "\n".join(problems)


def import_problems(path: Path) -> list[str]:
    mine = part(path)
    problems = []
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "lake" and rest:
            other = rest.split(".")[0]
            if other == mine or mine == "__init__" or other not in LAYERS:
                continue
            if (mine, other) in FORBIDDEN or LAYERS[other] > LAYERS[mine]:
                problems.append(f"{path.name}: {mine} must not import {other}")
            if LAYERS[mine] == LAYERS[other] == 0 and (mine, other) not in FLOOR_ORDER:
                problems.append(f"{path.name}: the floor's {mine} must not import {other}")
        elif top in FENCES and mine not in FENCES[top]:
            problems.append(f"{path.name}: {top} belongs into {sorted(FENCES[top])}, not into {mine}")
    return problems


FLOOR_ORDER = {("settings", "errors")}


def size_problems(path: Path) -> list[str]:
    name = str(path.relative_to(ROOT))
    problems = []
    lines = path.read_text(encoding="utf-8").count("\n")
    if lines > MAX_MODULE_LINES and name not in LONG_MODULES:
        problems.append(f"{name}: {lines} lines, the limit is {MAX_MODULE_LINES}")
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES and f"{name}:{node.name}" not in LONG_FUNCTIONS:
            problems.append(f"{name}:{node.lineno} {node.name}: {length} lines, the limit is {MAX_FUNCTION_LINES}")
        positional = [a for a in node.args.posonlyargs + node.args.args if a.arg not in ("self", "cls")]
        kernel = any("njit" in ast.unparse(decorator) for decorator in node.decorator_list)
        if len(positional) > MAX_POSITIONAL and not kernel:
            problems.append(f"{name}:{node.lineno} {node.name}: {len(positional)} positional parameters")
    return problems


def docstring_problems(path: Path) -> list[str]:
    """Public names have docstrings; a public function that raises a LakeError itself names it."""
    name = str(path.relative_to(ROOT))
    problems = []
    if not ast.get_docstring(tree(path)) and path.read_text(encoding="utf-8").strip():
        problems.append(f"{name}: no module docstring")
    for node in tree(path).body:
        members = [node, *node.body] if isinstance(node, ast.ClassDef) else [node]
        for member in members:
            if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) or member.name.startswith("_"):
                continue
            doc = ast.get_docstring(member) or ""
            if not doc:
                problems.append(f"{name}:{member.lineno} {member.name}: no docstring")
                continue
            for error in sorted(raised(member)):
                if error not in doc:
                    problems.append(
                        f"{name}:{member.lineno} {member.name}: raises {error}, the docstring does not say so"
                    )
    return problems


LAKE_ERRORS = {"Invalid", "NotFound", "Conflict", "Unavailable", "LimitExceeded", "Cancelled", "Corrupt"}


def raised(function: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            found.add(node.exc.func.id)
    return found & LAKE_ERRORS


def test_no_silent_broad_except() -> None:
    problems = []
    for path in sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler):
                caught = ast.unparse(node.type) if node.type else "everything"
                if caught in ("Exception", "BaseException", "everything") and part(path) not in ("cli", "server"):
                    problems.append(f"{path.relative_to(ROOT)}:{node.lineno} catches {caught}")
    assert not problems, "\n".join(problems)


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_the_tree_names_no_machine_path_and_no_registry() -> None:
    pattern = re.compile(r"(?<![\w.])/(work|root|home)/\w|index-url|\bregistry = \"http")
    texts = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cfg", ".ini", ".sh"}
    problems = []
    for path in tracked():
        if path.suffix not in texts or path.is_relative_to(ROOT / "tests" / "data") or path.name == "test_tidy.py":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                problems.append(f"{path.relative_to(ROOT)}:{number} {line.strip()[:100]}")
    assert not problems, "\n".join(problems)
