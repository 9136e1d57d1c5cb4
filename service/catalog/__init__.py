"""The catalog: what exists, what is published, who owns what. Its transaction is the only commit point.

It knows tables and transactions; it refuses to know HTTP, files and Spark.
"""
