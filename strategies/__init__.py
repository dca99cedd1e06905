"""The server's half of each protocol, one Flower Strategy a file, and what they share."""
