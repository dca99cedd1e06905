"""Who takes part in a run: the key bundles of all sites, checked, and how far they are trusted.

Every site checks the roster that the server relays. A bundle whose signing key has the
fingerprint that the site's own configuration gives is ``"pinned"``; without one it is trusted on
first use, ``"first-use"``, and the run has to say so. The roster is stored with the site's state,
and later steps name sites of it, so keys cannot change within a run.

What is not covered
    Sites that are trusted on first use may all be inventions of the server, and a sum over one
    real site and inventions is that site's value. `require_pinned` refuses them. Two sites that
    were shown different rosters have different `Roster.fingerprint`: operators can compare that
    one code instead of one a site.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

from tasks.secure.keys import (
    KeyFault,
    PublicBundle,
    SiteKeys,
    check_name,
    format_fingerprint,
    parse_fingerprint,
)
from tasks.secure.transcript import decode, encode

_ROSTER = "fedapp/roster/1"

ROSTER_FAULTS = frozenset(
    {
        "invalid-key-bundle",
        "invalid-name",
        "wrong-run",
        "duplicate-site",
        "equal-keys",
        "own-keys-replaced",
        "malformed-fingerprint",
        "fingerprint-mismatch",
        "unpinned-site",
        "malformed-roster",
    }
)
"""Codes of the faults with which a site refuses keys that were relayed to it."""

Trust = Literal["own", "pinned", "first-use"]


@dataclass(frozen=True)
class Roster:
    """Bundles of the sites of a run, in the order of names; made by `from_bundles`.

    Parameters
    ----------
    run : str
        The run they are for.
    bundles : tuple of PublicBundle
        Checked, one a site, ordered by site name.
    trust : mapping of str to {"own", "pinned", "first-use"}
        By site name.
    """

    run: str
    bundles: tuple[PublicBundle, ...]
    trust: Mapping[str, Trust]

    @classmethod
    def from_bundles(
        cls,
        bundles: Iterable[PublicBundle | bytes],
        *,
        run: str,
        own: SiteKeys | None = None,
        pinned: Mapping[str, str] | None = None,
        require_pinned: bool = False,
    ) -> Self:
        """Check the bundles of all sites of a run.

        Parameters
        ----------
        bundles : iterable of PublicBundle or bytes
            In any order.
        run : str
            The run they have to be for.
        own : SiteKeys, optional
            The keys of the site that checks: its bundle has to be among them, unchanged.
        pinned : mapping of str to str, optional
            Fingerprint by site name, from the site's own configuration.
        require_pinned : bool
            Refuse sites of which no fingerprint is given.

        Raises
        ------
        KeyFault
            All faults at once, with the code of the first: ``invalid-key-bundle``,
            ``invalid-name``, ``wrong-run``, ``duplicate-site``, ``equal-keys``,
            ``own-keys-replaced``, ``malformed-fingerprint``, ``fingerprint-mismatch``,
            ``unpinned-site``.
        """
        check_name("run", run)
        faults: list[tuple[str, str]] = []
        found = sorted(_parsed(bundles, faults), key=lambda bundle: bundle.site)
        faults += _repeated(found)
        faults += [
            ("wrong-run", f"{b.site}: its keys are for another run") for b in found if b.run != run
        ]
        pins = _parsed_pins(pinned or {}, faults)
        public = own.public if own is not None else None  # it is signed anew whenever it is asked
        trust: dict[str, Trust] = {}
        for bundle in found:
            pin = pins.get(bundle.site)
            is_own = bundle == public
            trust[bundle.site] = "own" if is_own else "pinned" if pin is not None else "first-use"
            if pin is not None and bundle.fingerprint != pin:
                faults.append(_mismatch(bundle, pin))
            if require_pinned and trust[bundle.site] == "first-use":
                reason = f"{bundle.site}: no fingerprint is given for it"
                faults.append(("unpinned-site", reason))
        if own is not None and "own" not in trust.values():
            reason = f"{own.site}: its own keys are missing or were replaced"
            faults.append(("own-keys-replaced", reason))
        if faults:
            raise KeyFault(faults[0][0], *(reason for _, reason in faults))
        return cls(run, tuple(found), trust)

    # What follows is computed once: a masked sum asks for it at every pair of sites.

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Site names, sorted."""
        return tuple(bundle.site for bundle in self.bundles)

    @property
    def first_use(self) -> tuple[str, ...]:
        """Names of the sites that are trusted on first use."""
        return tuple(name for name in self.names if self.trust[name] == "first-use")

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of run, names and keys, 32 bytes: what masks are bound to."""
        keys = [(b.site, b.sealing_key, b.signing_key) for b in self.bundles]
        return hashlib.sha256(encode(_ROSTER, self.run, *(f for k in keys for f in k))).digest()

    @property
    def fingerprint(self) -> str:
        """One code for the whole roster, equal at all sites that were shown the same."""
        return format_fingerprint(self.digest)

    @cached_property
    def _by_site(self) -> dict[str, PublicBundle]:
        return {bundle.site: bundle for bundle in self.bundles}

    def __getitem__(self, site: str) -> PublicBundle:
        """Bundle of a site; `KeyFault` ``unknown-site`` if there is none."""
        if site not in self._by_site:
            raise KeyFault(
                "unknown-site", f"{site[:200]!r} is not in the roster of {', '.join(self.names)}"
            )
        return self._by_site[site]

    def to_bytes(self) -> bytes:
        """Serialise, for a message or the site's state; trust is not part of it."""
        return encode(_ROSTER, *(bundle.to_bytes() for bundle in self.bundles))

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        *,
        run: str,
        own: SiteKeys | None = None,
        pinned: Mapping[str, str] | None = None,
        require_pinned: bool = False,
    ) -> Self:
        """Read what `to_bytes` wrote, and check it as `from_bundles` does.

        Raises
        ------
        KeyFault
            ``malformed-roster`` if it is something else, or as `from_bundles` does.
        """
        try:
            bundles = decode(data, _ROSTER)
        except ValueError:
            raise KeyFault("malformed-roster", "these bytes are not a roster") from None
        return cls.from_bundles(
            bundles, run=run, own=own, pinned=pinned, require_pinned=require_pinned
        )


def _parsed(
    bundles: Iterable[PublicBundle | bytes], faults: list[tuple[str, str]]
) -> list[PublicBundle]:
    found = []
    for bundle in bundles:
        try:
            found.append(
                bundle if isinstance(bundle, PublicBundle) else PublicBundle.from_bytes(bundle)
            )
        except KeyFault as fault:
            faults += [(fault.code, reason) for reason in fault.reasons]
    return found


def _repeated(bundles: list[PublicBundle]) -> list[tuple[str, str]]:
    faults = [
        ("duplicate-site", f"{name}: {count} sites have this name")
        for name, count in Counter(bundle.site for bundle in bundles).items()
        if count > 1
    ]
    for kind in ("sealing_key", "signing_key"):
        holders: dict[bytes, list[str]] = {}
        for bundle in bundles:
            holders.setdefault(getattr(bundle, kind), []).append(bundle.site)
        faults += [
            ("equal-keys", f"{', '.join(names)}: equal {kind.replace('_', ' ')}s")
            for names in holders.values()
            if len(names) > 1
        ]
    return faults


def _parsed_pins(pinned: Mapping[str, str], faults: list[tuple[str, str]]) -> dict[str, str]:
    pins = {}
    for site, text in pinned.items():
        try:
            pins[site] = parse_fingerprint(text)
        except ValueError:
            reason = f"{site}: its pinned fingerprint must be 32 characters of base32 (A-Z, 2-7)"
            faults.append(("malformed-fingerprint", reason))
    return pins


def _mismatch(bundle: PublicBundle, pin: str) -> tuple[str, str]:
    return (
        "fingerprint-mismatch",
        f"{bundle.site}: its key has the fingerprint {bundle.fingerprint}, pinned is {pin}",
    )
