"""What sites do among themselves so that the server between them learns no more than it must.

`keys`
    A site's key pairs for a run and its signed public bundle; fingerprints.
`identity`
    A lasting signing key in a file, whose fingerprint other sites pin.
`roster`
    All bundles of a run, checked; which ones are pinned, and which trusted on first use.
`sealed_relay`
    One site to another through the server: sealed, signed, once a step.
`record_names`
    What a record of a message is called, by how its content is protected.
`secure_sums`, `sum_guard`
    Sums over sites under pairwise masks; one answer a step.
`fixed_point`
    Reals as whole numbers for such sums, with a stated tolerance.
`transcript`
    Length-prefixed encoding of what is signed or bound.

A handler reads keys, guards and roster from the site's state, does its step, and stores the
guards again, last. They belong together: keys without their guards can be made to answer twice.
"""
