"""Records on their way to readers: pages from a place on, and tails that follow."""
