"""How posted records become durable: partitioned, one segment for all that is waiting, fsync, published, and only then
answered (group commit).

Knows offsets, segments and Idempotency-Keys. Refuses to know formats, HTTP and what a stream asks of its records.
"""

from service.ingest.appends import Answer, Idempotency, SettingsChanged, Target
from service.ingest.buffer import AppendBuffer, Room

__all__ = ["Answer", "AppendBuffer", "Idempotency", "Room", "SettingsChanged", "Target"]
