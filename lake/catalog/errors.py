"""Database errors in the words of Lake: the one place where they are translated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from lake.errors import Conflict, Corrupt, Invalid, LakeError, Unavailable

_SQLSTATES = {
    "08": Unavailable,  # connection exception
    "23": Conflict,  # two writers of one key
    "25": Invalid,  # read-only server
    "28": Invalid,  # wrong user or password
    "3D": Invalid,  # no such database
    "40": Conflict,  # serialization failure, deadlock
    "42": Invalid,  # no permission
    "53": Unavailable,  # insufficient resources
    "54": Invalid,  # value too large for an index
    "55": Unavailable,  # lock not available
    "57": Unavailable,  # shutting down, cancelled
    "58": Unavailable,  # system error
    "22": Invalid,  # value out of range
    "XX": Corrupt,
}
"""Class of an SQLSTATE (PostgreSQL documentation, appendix A) → error."""

_PHRASES = (
    ("locked", Unavailable),
    ("busy", Unavailable),
    ("full", Unavailable),
    ("i/o error", Unavailable),
    ("unable to open", Invalid),
    ("readonly", Invalid),
    ("not a database", Corrupt),
    ("malformed", Corrupt),
    ("already exists", Invalid),
    # libpq gives no SQLSTATE when it could not log in
    ("password authentication failed", Invalid),
    ("does not exist", Invalid),
)


def translate(error: sa.exc.SQLAlchemyError, url: sa.URL) -> LakeError:
    """The error of Lake for an error of the database behind `url`; the password is not told."""
    where = url.render_as_string(hide_password=True)
    original = getattr(error, "orig", None) or error
    text = " ".join(str(original).split())
    kind = _kind(error, text)
    advice = {
        Unavailable: "try again when it is reachable and not busy",
        Invalid: "check the address, the permissions and the values",
        Corrupt: "restore the catalog or open another",
        Conflict: "read the state again and retry",
    }[kind]
    return kind(f"catalog {where}: {text}; {advice}")


def _kind(error: sa.exc.SQLAlchemyError, text: str) -> type[LakeError]:
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    if isinstance(state, str):
        return _SQLSTATES.get(state[:2], Unavailable)
    if isinstance(error, sa.exc.IntegrityError):
        return Conflict
    low = text.lower()
    for phrase, kind in _PHRASES:
        if phrase in low:
            return kind
    return Invalid if isinstance(error, sa.exc.DataError) else Unavailable


@contextmanager
def translated(url: sa.URL) -> Iterator[None]:
    """Raise what the database raises inside as an error of Lake.

    Raises:
        Unavailable: not reachable, locked or out of room; a later call may succeed.
        Conflict: another transaction came first.
        Invalid: refused address, user, permission or value.
        Corrupt: the database file is damaged.
    """
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        raise translate(error, url) from error
