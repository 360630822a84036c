"""Alembic's entry: runs migrations on the connection that the caller hands in."""

from typing import Any, Literal

from alembic import context
from sqlalchemy.types import TypeDecorator

from lake.catalog.tables import METADATA, Text


def render_item(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """Column types in new migrations as plain SQLAlchemy ones: migrations outlive the code's types."""
    if kind != "type" or not isinstance(item, TypeDecorator):
        return False
    if isinstance(item, Text):
        return "sa.Text().with_variant(sa.Text(collation='C'), 'postgresql')"
    return f"sa.{item.impl_instance!r}"


context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_item=render_item)
with context.begin_transaction():
    context.run_migrations()
