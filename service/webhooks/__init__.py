"""Webhooks out: records of a subscription, posted to an address one by one, signed as Standard Webhooks has it."""
