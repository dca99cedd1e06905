"""Keys that are the same in every run of the tests; those of sites are drawn anew."""

from __future__ import annotations

from hashlib import sha256

from tasks.secure.keys import SiteKeys


def seeded_keys(*, site: str, run: str, seed: int) -> SiteKeys:
    sealing, signing = (
        sha256(f"{seed} {site} {run} {purpose}".encode()).digest() for purpose in ("seal", "sign")
    )
    return SiteKeys(site, run, sealing, signing)
