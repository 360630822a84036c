"""The interactive console: SQL until `;`, history, completion, and commands that begin with a backslash."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import Output
from pygments.lexers.sql import PostgresLexer

from lake.cli.completion import COMMANDS, SqlCompleter
from lake.cli.render import write_rows
from lake.cli.statements import finished, split
from lake.embedded import Lake
from lake.errors import LakeError
from lake.query.views import VIEWS
from lake.schemas import MEANINGS, TABLES

_PROMPT: Final = "lake> "
_CONTINUED: Final = "  ... "


def run_console(lake: Lake, input: Input | None = None, output: Output | None = None) -> int:
    """Read and run statements until `\\q` or the end of input; gives exit code 0."""
    console = Console(lake)
    session: PromptSession[str] = PromptSession(
        history=_history(),
        lexer=PygmentsLexer(PostgresLexer),
        completer=SqlCompleter(console.tables(), lake.engine.functions()),
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation=_CONTINUED,
        complete_while_typing=True,
        input=input,
        output=output,
    )
    print("SQL ends with ;  -  \\? lists the commands, \\q leaves")
    while not console.left:
        try:
            text = session.prompt(_PROMPT)
        except KeyboardInterrupt:
            continue
        except EOFError:
            break
        console.take(text)
    return 0


class Console:
    """What the console does with a text that was entered; `left` becomes True after `\\q`."""

    def __init__(self, lake: Lake) -> None:
        self.left = False
        self._lake = lake
        self._timing = False
        self._commands: dict[str, Callable[[str], None]] = {
            "\\d": self._describe,
            "\\df": self._functions,
            "\\timing": self._switch_timing,
            "\\?": self._help,
            "\\q": self._leave,
        }

    def tables(self) -> dict[str, list[str]]:
        """Columns of every table, by table."""
        rows = self._lake.sql(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' "
            "ORDER BY table_name, ordinal_position"
        )
        found: dict[str, list[str]] = {name: [] for name in self._lake.engine.tables()}
        for row in rows.rows():
            if row["table_name"] in found:
                found[row["table_name"]].append(row["column_name"])
        return found

    def take(self, text: str) -> None:
        """Run what was entered; an error is printed and ends nothing."""
        stripped = text.strip()
        if (last := stripped.rpartition("\n")[2].strip()) in ("\\q", "\\?"):
            stripped = last
        try:
            if stripped.startswith("\\"):
                name, _, argument = stripped.rstrip(";").partition(" ")
                self._commands.get(name, self._unknown)(argument.strip() or name)
            elif stripped.rstrip(";").lower() in ("quit", "exit"):
                self._leave("")
            else:
                for statement in split(text):
                    self._query(statement)
        except KeyboardInterrupt:
            print("cancelled")
        except LakeError as error:
            print(f"error: {error.message}")

    def _query(self, statement: str) -> None:
        began = time.perf_counter()
        self._print_rows(statement)
        if self._timing:
            print(f"time: {(time.perf_counter() - began) * 1000:.1f} ms")

    def _print_rows(self, query: str, params: dict[str, str] | None = None) -> None:
        with self._lake.sql(query, params) as result:  # leaving it, also by Ctrl-C, stops the query
            write_rows(result.arrow(), "table")

    def _describe(self, argument: str) -> None:
        if argument != "\\d":
            columns = self._lake.engine.columns(argument)
            names, types = [name for name, _ in columns], [kind for _, kind in columns]
            signal = argument in TABLES or argument in VIEWS
            meanings = [MEANINGS.get(name, "") if signal else "" for name in names]
            write_rows(pa.table({"column": names, "type": types, "meaning": meanings}), "table")
            if argument in VIEWS:
                print(VIEWS[argument].doc)
            return
        rows = {table["table"]: table["rows"] for table in self._lake.status()["tables"]}
        names = self._lake.engine.tables()
        kinds = ["view" if name in VIEWS else "table" if name in TABLES else "catalog" for name in names]
        counts = pa.array([rows.get(name) for name in names], pa.int64())
        write_rows(pa.table({"table": names, "kind": kinds, "rows": counts}), "table")

    def _functions(self, argument: str) -> None:
        where = "" if argument == "\\df" else " WHERE name = $name"
        given = None if argument == "\\df" else {"name": argument}
        self._print_rows(f"SELECT signature, purpose FROM lake_functions(){where} ORDER BY signature", given)
        if given:
            columns = "SELECT unnest(columns) AS c FROM lake_functions() WHERE name = $name"
            self._print_rows(f"SELECT c.name AS column, c.type AS type, c.doc AS meaning FROM ({columns})", given)

    def _switch_timing(self, _: str) -> None:
        self._timing = not self._timing
        print(f"timing is {'on' if self._timing else 'off'}")

    def _help(self, _: str) -> None:
        for command, meaning in COMMANDS.items():
            print(f"{command:10}{meaning}")

    def _leave(self, _: str) -> None:
        self.left = True

    def _unknown(self, _: str) -> None:
        print("error: no such command, \\? lists them")


def _history() -> History:
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    try:
        (base / "lake").mkdir(parents=True, exist_ok=True)
        with (base / "lake" / "history").open("a"):
            return FileHistory(base / "lake" / "history")
    except OSError:  # a home that cannot be written must not forbid the console
        return InMemoryHistory()


def _keys() -> KeyBindings:
    """Enter ends a finished statement, a command and an empty line, and begins a new line otherwise."""
    keys = KeyBindings()

    @Condition
    def ready() -> bool:
        text = get_app().current_buffer.text
        if text.rpartition("\n")[2].strip() in ("\\q", "\\?"):  # also where a statement was begun
            return True
        return not text.strip() or text.lstrip().startswith("\\") or finished(text) or text.strip() in ("quit", "exit")

    @keys.add("enter", filter=ready)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return keys
