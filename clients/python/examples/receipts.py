"""A receipt for each payment, at least once: as of any effect that shares no transaction with its place, an e-mail.

receipts.py FILE NAME    writes receipts, a line each, until it is ended; start it again under its NAME and it goes on

The service keeps the place. A batch is acknowledged when the next one is asked for: who is killed before gets it again.
Others, under names of their own, share the work.
"""

import os
import sys

from millrace_client import Client, SubscriptionConsumer


def send_receipts(client: Client, path: str, name: str) -> None:
    """For ever; `paid` is what payments.py makes of payments, each of them there once."""
    client.call("POST", "/v1/streams", {"name": "paid"}, is_repeatable=True)
    wanted = {"name": "receipts", "start": "earliest"}
    client.call("POST", "/v1/streams/paid/subscriptions", wanted, is_repeatable=True)
    with open(path, "a") as receipts, SubscriptionConsumer(client, "paid", "receipts", name=name) as consumer:
        for payment in consumer:
            receipts.write(f"{payment.value['id']} {payment.value['cents']}\n")
            receipts.flush()


if __name__ == "__main__":
    with Client(os.environ["MILLRACE_URL"], os.environ["MILLRACE_API_KEY"]) as client:
        send_receipts(client, *sys.argv[1:])
