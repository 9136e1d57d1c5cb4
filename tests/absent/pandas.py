"""Stands before the real one on the path of processes that tests start (tests/conftest.py), as if there were none."""

raise ImportError("the image has no pandas")
