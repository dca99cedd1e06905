"""What a site may be called: the same rule where a site names itself and where it is told."""

from __future__ import annotations

import unicodedata

LONGEST_SITE_NAME = 64

SITE_NAME_RULE = (
    f'1 to {LONGEST_SITE_NAME} letters, digits, ".", "_", "-" and single spaces, '
    "the first a letter or digit"
)


def normalized_name(given: str) -> str:
    """Return a name without white space around it and with accents composed (Unicode NFC).

    One name is then one string everywhere.
    """
    return unicodedata.normalize("NFC", given).strip()


def is_site_name(name: str) -> bool:
    """Whether a name is normalized and keeps `SITE_NAME_RULE`, so that it is safe in file names.

    Letters and digits may be of any script.
    """
    # The length first: a name from elsewhere may be of any.
    return (
        1 <= len(name) <= LONGEST_SITE_NAME
        and name == normalized_name(name)
        and all(mark in "._- " or unicodedata.category(mark)[0] in "LMN" for mark in name)
        and name[0] not in "._-"
        and unicodedata.category(name[0])[0] != "M"
        and "  " not in name
    )
