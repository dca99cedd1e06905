"""Noise, clipping and what they are worth; used by every task."""
