"""Payment webhooks come twice, late, and while something is down: each payment is booked once.

payments.py post FILE       posts webhooks, one JSON object a line, from eight threads
payments.py book DATABASE   books payments in SQLite, until it is ended; start it again and it goes on
"""

import json
import os
import sqlite3
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from millrace_client import Client, Consumer, Job, Producer

FIRST_OF_EACH = {"op": "deduplicate", "name": "seen", "id": "value->>'id'", "interval_ms": 86_400_000}
JOB = {"name": "once", "source": "payments", "sink": "paid", "operators": [FIRST_OF_EACH]}
TABLES = """
create table if not exists bookings (payment text, account text, cents integer);
create table if not exists place (one integer primary key, position text);
"""


def post(client: Client, webhooks: Iterable[dict[str, Any]]) -> None:
    """Return when all of them are durable."""
    with Producer(client, "payments") as producer, ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda webhook: producer.send(webhook, key=webhook["account"]).result(), webhooks):
            pass


def book(client: Client, database: str) -> None:
    """Book payments for ever: a booking and the place behind it are one transaction, so neither is there alone."""
    db = sqlite3.connect(database)
    db.executescript(TABLES)
    (start,) = db.execute("select position from place").fetchone() or ("earliest",)
    for payments in Consumer(client, "paid", start=start).batches():
        with db:
            rows = [(payment.value["id"], payment.key, payment.value["cents"]) for payment in payments]
            db.executemany("insert into bookings values (?, ?, ?)", rows)
            db.execute("insert or replace into place values (1, ?)", (payments[-1].position,))


def main(verb: str, path: str) -> None:
    """MILLRACE_URL and MILLRACE_API_KEY say where the service is and who asks."""
    with Client(os.environ["MILLRACE_URL"], os.environ["MILLRACE_API_KEY"]) as client:
        client.call("POST", "/v1/streams", {"name": "payments"}, is_repeatable=True)
        Job.submit(client, JOB)
        if verb == "book":
            book(client, path)
        else:
            with open(path) as file:
                post(client, map(json.loads, file))


if __name__ == "__main__":
    main(*sys.argv[1:])
