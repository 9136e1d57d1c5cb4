"""The schema goes up to what the tables say, and down to nothing, on both databases."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, inspect

from service.catalog.engine import Catalog, downgrade, upgrade
from service.catalog.tables import Table
from tests.integration.catalog.looking import engine_of


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, Table.metadata))


def test_the_migrated_schema_is_the_one_of_the_tables(database_url: str) -> None:
    with engine_of(database_url) as engine:
        assert differences(engine) == []


def test_up_down_and_up_again(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    downgrade(empty_database_url, "base")
    with engine_of(empty_database_url) as engine:
        assert set(inspect(engine).get_table_names()) <= {"alembic_version"}
    upgrade(empty_database_url)
    with engine_of(empty_database_url) as engine:
        assert differences(engine) == []


def test_upgrading_again_changes_nothing(catalog: Catalog) -> None:
    lineage = catalog.lineage
    catalog.upgrade()
    assert catalog.lineage == lineage


def test_an_empty_database_is_not_current(empty_database_url: str) -> None:
    catalog = Catalog(empty_database_url)
    try:
        assert not catalog.is_current
        catalog.upgrade()
        assert catalog.is_current
    finally:
        catalog.close()


def test_every_catalog_has_a_lineage_of_its_own(catalog: Catalog) -> None:
    first = catalog.lineage
    catalog.downgrade("base")
    catalog.upgrade()
    assert len(first) == 32
    assert catalog.lineage != first
