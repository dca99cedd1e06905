"""Boosted trees where each party owns other columns and the labels of other rows (PIVODL)."""
