"""The commands of `millrace` for people: streams, jobs, stores, records, whole files of them, and where the service is.

They use this client alone. Needs the extra `cli` of millrace-client, which is `client` of millrace; nothing of the rest
of the client imports it. The commands are put together in `millrace_client.commands.app`.
"""
