"""The command `millrace` whose pushers of webhooks have short turns and leases, for tests that kill one.

Run as a program; the lease stays longer than a turn.
"""

from __future__ import annotations

from service import cli
from service.webhooks import pusher

if __name__ == "__main__":
    pusher.LEASE_MS, pusher.TURN_S, pusher.WAIT_S = 3_000, 1.0, 0.5
    cli.main()
