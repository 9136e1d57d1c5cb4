"""The schema goes up to what the tables say, and down to nothing, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, MetaData, inspect

from service.catalog.engine import Catalog, downgrade, upgrade
from service.catalog.inputs import unpack
from service.catalog.tables import CatalogTable
from tests.integration.catalog.looking import engine_of


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, CatalogTable.metadata))


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


# ---------------------------------------------------------------- what is in it goes along

Rows = dict[str, list[dict[str, Any]]]
OF_0002: Rows = {
    "streams": [
        {"id": i, "name": i, "kind": "user", "partitions": 2, "max_future_ms": 0, "etag": 1, "created_at": None}
        | {"custom_partitioning": False, "retention_overrides_jobs": False}
        for i in ("a", "b")
    ],
    "partitions": [
        {"stream_id": i, "partition": p, "start_offset": 0, "end_offset": 100, "bytes": 0, "records": 100}
        for i in ("a", "b")
        for p in (0, 1)
    ],
    "jobs": [
        {"id": "j", "name": "j", "spec": {}, "spec_sha256": "", "topology": {}, "state": "running", "reason": ""}
        | {"generation": 1, "max_batch_records": 10, "etag": 1, "created_at": None}
    ],
    "tasks": [
        {"id": f"t{p}", "job_id": "j", "name": f"0_{p}", "sub_topology": 0, "partition": p, "epoch": 3, "version": 7}
        | {"counters": {"records_in": 5}, "stream_time": 9, "updated_ms": 1, "is_closed": False}
        | owner
        for p, owner in enumerate(
            [
                {"slot_id": "s", "target_slot_id": "r", "last_instance_id": "i", "applied": {"store": 12}}
                | {"flush_at": {"b/0": 60, "a/0": 50}},
                {"slot_id": None, "target_slot_id": None, "last_instance_id": None, "applied": {}, "flush_at": None},
            ]
        )
    ],
    "task_positions": [
        {"task_id": f"t{p}", "stream_id": i, "partition": p, "position": position + p}
        for p in (0, 1)
        for i, position in (("a", 40), ("b", 20))
    ],
}


def put(engine: Engine, rows: Rows) -> None:
    tables = MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        for name, values in rows.items():
            table = tables.tables[name]
            columns = {column: value for row in values for column, value in row.items()}
            if "created_at" in columns:
                values = [row | {"created_at": datetime(2026, 1, 1, tzinfo=UTC)} for row in values]
            connection.execute(table.insert(), values)


def contents(engine: Engine, name: str, *columns: str) -> list[tuple[Any, ...]]:
    tables = MetaData()
    tables.reflect(engine)
    table = tables.tables[name]
    with engine.connect() as connection:
        found = connection.execute(table.select().order_by(*table.primary_key.columns))
        return [tuple(row._mapping[column] for column in columns) for row in found]


def test_copies_and_inputs_come_from_what_tasks_had_and_go_back(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0002")
    with engine_of(empty_database_url) as engine:
        put(engine, OF_0002)
        owners = ("id", "slot_id", "target_slot_id", "last_instance_id", "applied", "flush_at", "version")
        positions = ("task_id", "stream_id", "partition", "position")
        before = contents(engine, "tasks", *owners), contents(engine, "task_positions", *positions)
        upgrade(empty_database_url, "0003")
        assert contents(engine, "task_inputs", "task_id", "number", "stream_id", "partition") == [
            ("t0", 0, "a", 0),
            ("t0", 1, "b", 0),
            ("t1", 0, "a", 1),
            ("t1", 1, "b", 1),
        ]
        tasks = contents(engine, "tasks", "positions", "flush_at", "epoch", "counters")
        assert [(unpack(packed), *more) for packed, *more in tasks] == [
            ([(40, -1), (20, -1)], [50, 60], 3, {"records_in": 5}),
            ([(41, -1), (21, -1)], None, 3, {"records_in": 5}),
        ]
        assert contents(engine, "replicas", "task_id", "node_id", "role", "slot_id", "target_slot_id", "applied") == [
            ("t0", "i", "active", "s", "r", {"store": 12})
        ]
        downgrade(empty_database_url, "0002")
        assert (contents(engine, "tasks", *owners), contents(engine, "task_positions", *positions)) == before


OF_0004: Rows = {
    **{name: rows for name, rows in OF_0002.items() if name not in ("tasks", "task_positions")},
    "tasks": [
        {"id": "t", "job_id": "j", "name": "0_0", "sub_topology": 0, "partition": 0, "epoch": 3, "version": 7}
        | {"counters": {}, "stream_time": 9, "updated_ms": 1, "is_closed": False, "positions": b"\x28" + bytes(15)}
    ],
    "task_inputs": [{"task_id": "t", "number": 0, "stream_id": "a", "partition": 0}],
}


def test_an_input_is_a_range_of_one_partition_and_no_job_had_a_repartition(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0004")
    with engine_of(empty_database_url) as engine:
        put(engine, OF_0004)
        before = contents(engine, "task_inputs", "task_id", "number", "stream_id", "partition")
        upgrade(empty_database_url, "0005")
        assert contents(engine, "task_inputs", "number", "partition", "partitions", "sub_log") == [(0, 0, 1, None)]
        assert contents(engine, "tasks", "has_backlog", "positions") == [(False, b"\x28" + bytes(15))]
        assert contents(engine, "jobs", "flush", "max_repartition_bytes", "max_task_idle_ms") == [(None, None, None)]
        downgrade(empty_database_url, "0004")
        assert contents(engine, "task_inputs", "task_id", "number", "stream_id", "partition") == before


OF_0006: Rows = {
    **{name: OF_0002[name] for name in ("streams", "partitions")},
    "jobs": [OF_0002["jobs"][0] | {"spec": {"name": "j"}, "spec_sha256": "abc", "topology": {"job": "j"}}],
    "tasks": OF_0004["tasks"],
    "stores": [
        {"id": "s", "name": "j-n", "job_id": "j", "operator": "n", "type": "window", "kind": "windows", "spec": {}}
        | {"sub_topology": 0, "changelog_stream_id": "b"}
    ],
    "job_transitions": [
        {"id": 1, "job_id": "j", "at_ms": 77, "to_state": "starting", "reason": "created", "who": "me"},
        {"id": 2, "job_id": "j", "at_ms": 88, "to_state": "running", "reason": "run", "who": ""},
    ],
}


def test_jobs_that_are_there_have_a_first_version_of_which_all_is(empty_database_url: str) -> None:
    upgrade(empty_database_url, "0006")
    with engine_of(empty_database_url) as engine:
        put(engine, OF_0006)
        before = contents(engine, "jobs", "id", "spec", "state"), contents(engine, "tasks", "id", "positions")
        upgrade(empty_database_url, "0007")
        columns = ("job_id", "version", "spec", "spec_sha256", "topology", "at_ms", "kind", "who", "reason", "details")
        first = ("j", 1, {"name": "j"}, "abc", {"job": "j"}, 77, "create", "me", "created", None)
        assert contents(engine, "job_versions", *columns) == [first]
        assert contents(engine, "jobs", "spec_version", "change", "read_to") == [(1, None, None)]
        assert contents(engine, "tasks", "spec_version", "next_version") == [(1, None)]
        assert contents(engine, "stores", "since_version", "is_removed") == [(1, False)]
        downgrade(empty_database_url, "0006")
        assert "job_versions" not in inspect(engine).get_table_names()
        assert (contents(engine, "jobs", "id", "spec", "state"), contents(engine, "tasks", "id", "positions")) == before
