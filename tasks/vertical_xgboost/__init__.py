"""Gradient-boosted trees over columns and labels spread over parties (PIVODL)."""
