"""How does alembic reach the database? Through the connection that `engine.migrate` hands over."""

from alembic import context

from service.store.tables import bulk_metadata, metadata

given = context.config.attributes
is_bulk = given["schema"] == "bulk"
context.configure(
    connection=given["connection"],
    target_metadata=bulk_metadata if is_bulk else metadata,
    # The two may share one database; each has a history of its own.
    version_table="alembic_version_bulk" if is_bulk else "alembic_version",
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
