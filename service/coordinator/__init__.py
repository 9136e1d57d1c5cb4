"""The coordinator: membership, leases, work and rebalances, in catalog transactions, so that any API process can serve
any member.

leases         who is taken to be alive
ownership      who should own a task, and how it changes hands
sharing        how many slots of which job an instance should run
members        instances and slots join and leave
polls          slots at work: polls, commits, failures
quiet_polls    slots that have nothing to do
waiting_polls  whose leases their instance keeps
verbs          people pause, stop and change jobs
changes        a job becomes another version
evictions      the round that ends members that say nothing

It knows no web and no files; `service.catalog` has the tables.
"""

from service.coordinator.changes import change_version
from service.coordinator.evictions import SEEN, Ticks, tick
from service.coordinator.leases import SESSION_TIMEOUT_MS, require_own, require_slot
from service.coordinator.members import heartbeat, join_instance, join_slot, leave_instance, leave_slot, lose_executors
from service.coordinator.polls import PASS_OVER_MS, PollOutcome, commit_tasks, fail_task, poll_slot
from service.coordinator.quiet_polls import QuietPolls
from service.coordinator.verbs import change_job, change_spec, reset_job, reset_time
from service.coordinator.waiting_polls import PATIENCE, WaitingPolls

__all__ = [
    "PASS_OVER_MS",
    "PATIENCE",
    "SEEN",
    "SESSION_TIMEOUT_MS",
    "PollOutcome",
    "QuietPolls",
    "Ticks",
    "WaitingPolls",
    "change_job",
    "change_spec",
    "change_version",
    "commit_tasks",
    "fail_task",
    "heartbeat",
    "join_instance",
    "join_slot",
    "leave_instance",
    "leave_slot",
    "lose_executors",
    "poll_slot",
    "require_own",
    "require_slot",
    "reset_job",
    "reset_time",
    "tick",
]
