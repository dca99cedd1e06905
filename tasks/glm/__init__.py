"""Generalized linear models over sites: sums of a site, Fisher scoring at the server."""
