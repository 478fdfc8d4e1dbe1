"""Counting tokens as the encoding cl100k_base does, with a vocabulary of our own: nothing is fetched at run time.

tiktoken would download the vocabulary at its first use. The file beside this module is the same, compressed; a test
holds it to the digest that tiktoken expects.
"""

from __future__ import annotations

import base64
import gzip
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tiktoken

_SPLIT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
"""The encoding's rule for words, as tiktoken 0.14 has it."""


def vocabulary() -> bytes:
    """Return the vocabulary, a line for each token: its bytes in base64, and its rank."""
    packed = resources.files(__name__).joinpath("cl100k_base.tiktoken.gz").read_bytes()
    return gzip.decompress(packed)


@cache
def _encoding() -> tiktoken.Encoding:
    import tiktoken  # only where there are conversations: it costs 42 MB

    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, vocabulary().splitlines())}
    return tiktoken.Encoding("cl100k_base", pat_str=_SPLIT, mergeable_ranks=ranks, special_tokens={})


def count_tokens(text: str) -> int:
    """Return how many tokens a text has; what looks like a special token is text. Slow the first time (0.2 s)."""
    return len(_encoding().encode_ordinary(text))
