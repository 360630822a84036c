"""Alembic's entry: runs migrations on the connection that the caller hands in."""

from alembic import context

from lake.catalog.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
