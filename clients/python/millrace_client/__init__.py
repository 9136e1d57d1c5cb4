"""A client of Millrace: `Producer`, `Consumer`, `Job`, `Store`, `Stream`, for callers that block and for asyncio.

Errors are in `millrace_client.errors` (the families) and `millrace_client.codes` (a class a code). `generated`, where
`make clients` made it, is the whole API from its OpenAPI document; nothing here needs it.
"""

from millrace_client.batches import Limits
from millrace_client.clients import AsyncClient, Client
from millrace_client.consumer import AsyncConsumer, Consumer
from millrace_client.errors import ApiError, DeliveryFailed, JobFailed, MillraceError, NoAnswer
from millrace_client.exchanges import Retries
from millrace_client.jobs import AsyncJob, Job
from millrace_client.producer import AsyncProducer, Producer
from millrace_client.records import Appended, AsOf, Entry, JobView, Lookup, Record, Window
from millrace_client.stores import AsyncStore, Store
from millrace_client.streams import AsyncStream, Stream
from millrace_client.subscriptions import AsyncSubscriptionConsumer, Gap, Pulls, SubscriptionConsumer

__all__ = [
    "ApiError",
    "Appended",
    "AsOf",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncJob",
    "AsyncProducer",
    "AsyncStore",
    "AsyncStream",
    "AsyncSubscriptionConsumer",
    "Client",
    "Consumer",
    "DeliveryFailed",
    "Entry",
    "Gap",
    "Job",
    "JobFailed",
    "JobView",
    "Limits",
    "Lookup",
    "MillraceError",
    "NoAnswer",
    "Producer",
    "Pulls",
    "Record",
    "Retries",
    "Store",
    "Stream",
    "SubscriptionConsumer",
    "Window",
]
