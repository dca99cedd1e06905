"""Sums of numbers that whoever adds them up cannot read: Paillier's cryptosystem.

`keys`
    Key pairs: drawn, stored, sent, and checked when they come from somebody else.
`ciphertexts`
    Vectors of ciphertexts under one key, their bytes, and the checks on what arrives.
`engine`
    Encrypt, decrypt, add, multiply, re-randomise, fold: the interface.
`gmpy2_engine`, `blinding`
    The default engine; blinding factors from a fixed-base table.
`phe_engine`
    The same on the library `phe` (GPL-3.0), imported only when it is asked for.
`packing`
    Many signed sums in one plaintext.
`level_packing`
    Where the sums of a tree level stand in plaintexts, and how single candidates are folded in.
"""
