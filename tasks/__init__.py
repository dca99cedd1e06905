"""A site's half of each protocol, and the mathematics."""
