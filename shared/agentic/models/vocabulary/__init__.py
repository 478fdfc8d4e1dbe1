"""Count tokens like the encoding cl100k_base; tiktoken would download the vocabulary that is stored here."""

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
"""The encoding's rule for words (tiktoken 0.14)."""


def vocabulary() -> bytes:
    """Return the vocabulary: per line a token in base64 and its rank."""
    packed = resources.files(__name__).joinpath("cl100k_base.tiktoken.gz").read_bytes()
    return gzip.decompress(packed)


@cache
def _encoding() -> tiktoken.Encoding:
    import tiktoken  # only where there are conversations: it costs 42 MB

    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, vocabulary().splitlines())}
    return tiktoken.Encoding("cl100k_base", pat_str=_SPLIT, mergeable_ranks=ranks, special_tokens={})


def count_tokens(text: str) -> int:
    """Return the number of tokens; special tokens count as text. The first call takes 0.2 s."""
    return len(_encoding().encode_ordinary(text))
