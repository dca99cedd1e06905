"""Validation of a binary classifier on scores spread over sites (distributed ROC-GLM)."""
