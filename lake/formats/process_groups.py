"""Process groups of one Flight Recorder dump: names, members, and what they tell of the rank that wrote it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from lake.records import Communicator, Identity

_RANKS: Final = re.compile(r"\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroups:
    """The groups that the writing rank is a member of."""

    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """group name → global ranks in group order; groups whose members the dump does not know are not in it"""
    descriptions: dict[str, str] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=dict)
    by_id: dict[str, str] = field(default_factory=dict)
    """the rank's own number of a group (`pg_id`) → group name, as far as entries tell"""
    rank: int | None = None
    """the rank that wrote the dump, when it is the only member that all groups have in common"""

    @classmethod
    def of(cls, pg_config: Any, entries: list[dict[str, Any]]) -> ProcessGroups:
        """The groups of `pg_config` and of the entries; whatever is not well-formed is left out."""
        members: dict[str, tuple[int, ...]] = {}
        descriptions: dict[str, str] = {}
        backends: dict[str, str] = {}
        by_id: dict[str, str] = {}
        for name, group in pg_config.items() if isinstance(pg_config, dict) else ():
            ranks = _ranks(group.get("ranks")) if isinstance(group, dict) else None
            if not ranks or not _plain(name):
                continue
            members[name] = ranks
            if _plain(group.get("desc")):
                descriptions[name] = group["desc"]
        for entry in entries:
            group_name = cls.name_of(entry)
            if group_name is not None:
                by_id[str(entry.get("pg_id"))[:32]] = group_name
                backend, colon, _ = entry["profiling_name"].partition(":")
                if colon and _plain(backend):
                    backends.setdefault(group_name, backend)
        common = set.intersection(*map(set, members.values())) if members else set()
        return cls(
            members=members,
            descriptions=descriptions,
            backends=backends,
            by_id=by_id,
            rank=common.pop() if len(common) == 1 else None,
        )

    @staticmethod
    def name_of(entry: dict[str, Any]) -> str | None:
        """The name of the group that an entry belongs to."""
        group = entry.get("process_group")
        name = group[0] if isinstance(group, list | tuple) and group else None
        return name if _plain(name) else None

    def global_rank(self, name: str | None, group_rank: int | None) -> int | None:
        """The global rank of a rank in a group; None when the members of the group are not known."""
        ranks = self.members.get(name, ()) if name is not None else ()
        return ranks[group_rank] if group_rank is not None and group_rank < len(ranks) else None

    def names_of_ids(self, pg_ids: list[str]) -> dict[str, str]:
        """Group names of the rank's own group numbers.

        Entries tell them directly. For groups without entries: both numbers and names count up in order of
        creation, so the sorted lists correspond, provided they are equally long and agree with every entry.
        """
        if len(pg_ids) != len(self.members) or not all(i.isdecimal() for i in (*pg_ids, *self.members)):
            return self.by_id
        paired = dict(zip(sorted(pg_ids, key=int), sorted(self.members, key=int), strict=True))
        return paired if all(paired.get(i, name) == name for i, name in self.by_id.items()) else self.by_id

    def facts(self, identity: Identity) -> list[Communicator]:
        """One communicator per group whose members are known."""
        return [
            Communicator(
                run_id=identity.run_id,
                attempt_id=identity.attempt_id,
                communicator_id=name,
                description=self.descriptions.get(name),
                backend=self.backends.get(name),
                ranks=ranks,
            )
            for name, ranks in self.members.items()
        ]


def _ranks(text: Any) -> tuple[int, ...] | None:
    """The ranks of `"[0, 1]"` or `[0, 1]`, None for anything else."""
    if isinstance(text, str) and _RANKS.fullmatch(text):
        ranks = tuple(map(int, re.findall(r"[0-9]+", text)))
    elif isinstance(text, list) and all(type(rank) is int for rank in text):
        ranks = tuple(text)
    else:
        return None
    return ranks if all(0 <= rank < 1 << 31 for rank in ranks) else None


def _plain(text: Any) -> bool:
    """Whether it is text that can be stored: not empty, no lone surrogates."""
    if not isinstance(text, str) or not text:
        return False
    return text.isascii() or "\ufffd" not in text.encode("utf-8", "replace").decode()
