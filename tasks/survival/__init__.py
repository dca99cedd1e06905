"""Survival models over sites: data, training, evaluation, baseline hazard, prediction."""
