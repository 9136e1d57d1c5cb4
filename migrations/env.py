"""What Alembic runs: one transaction, on the connection that `service.catalog.engine` hands over."""

from alembic import context

from service.catalog.tables import CatalogTable

context.configure(connection=context.config.attributes["connection"], target_metadata=CatalogTable.metadata)
with context.begin_transaction():
    context.run_migrations()
