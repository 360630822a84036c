"""The first planning pass: over empty tables, to learn which tables a query reads and with what filters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from datafusion.expr import TableScan
from datafusion.plan import LogicalPlan

from lake.catalog.contract import RELATIONS, Catalog
from lake.predicates import Always, Predicate
from lake.query.functions import install
from lake.query.listing import Listing
from lake.query.pruning import disjunction, predicate_of
from lake.query.session import PHYSICAL, READ_ONLY, define_view, empty_relation, new_context
from lake.query.views import VIEWS
from lake.settings import Settings

_MEMORY_BYTES: Final = 64 << 20
_KNOWN_PLANS: Final = 256
_VOLATILE: Final = frozenset({"now", "today", "current_date", "current_time", "current_timestamp", "random", "uuid"})
_SCAN_LINE: Final = re.compile(r"^\s*TableScan: (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reads:
    """What a query reads: a necessary condition for the files of each signal table, and catalog relations."""

    tables: dict[str, Predicate]
    relations: frozenset[str]


class Planner:
    """A session in which every table is empty; queries are planned in it and never run.

    It holds no state of any query, so threads share it.
    """

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        # a scalar subquery planned as a join is part of the plan tree; otherwise it hides in an expression
        options = {"datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery": "false"}
        self._context = new_context(settings, _MEMORY_BYTES, options)
        self._listings = [Listing(self._context, name, schema) for name, schema in PHYSICAL.items()]
        for name in RELATIONS:
            empty_relation(self._context, name, catalog.relation_schema(name))
        for view in VIEWS.values():
            define_view(self._context, view)
        install(self._context, lambda function, arguments: function.schema_of(arguments).empty_table())
        self._known = lru_cache(maxsize=_KNOWN_PLANS)(self._plan)

    def reads(self, query: str, words: frozenset[str]) -> Reads:
        """What a query reads, from its optimised plan; `words` are the names it mentions.

        It depends on the text alone, unless that asks for the time. Raises what DataFusion raises.
        """
        return self._plan(query) if words & _VOLATILE else self._known(query)

    def _plan(self, query: str) -> Reads:
        plan = self._context.sql_with_options(query, READ_ONLY).optimized_logical_plan()
        scans = list(_scans(plan))
        found = Counter(scan.table_name() for scan in scans)
        written = Counter(_SCAN_LINE.findall(plan.display_indent()))
        tables: dict[str, Predicate] = {}
        for name in PHYSICAL:
            if written[name] > found[name]:
                tables[name] = Always()  # a scan is hidden in an expression: its filters cannot be seen
            elif found[name]:
                filters = [scan.filters() for scan in scans if scan.table_name() == name]
                tables[name] = disjunction(predicate_of(each, PHYSICAL[name]) for each in filters)
        relations = frozenset(name for name in RELATIONS if written[name] or found[name])
        return Reads(tables, relations)


def _scans(plan: LogicalPlan) -> Iterator[Any]:
    """Every table scan below a plan, in its order; deep plans are walked without recursion."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        variant = node.to_variant()
        if isinstance(variant, TableScan):
            yield variant
        waiting.extend(reversed(node.inputs()))
