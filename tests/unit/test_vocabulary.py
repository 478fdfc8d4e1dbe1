"""The counter of tokens: the encoding that everybody has, from a file that is never fetched."""

from __future__ import annotations

import hashlib
import inspect

from tiktoken_ext import openai_public

from planq.shared.agentic.models import vocabulary as vocabulary_module
from planq.shared.agentic.models.vocabulary import count_tokens, vocabulary


def test_the_vocabulary_is_the_one_that_tiktoken_expects() -> None:
    assert hashlib.sha256(vocabulary()).hexdigest() in inspect.getsource(openai_public.cl100k_base)


def test_tokens_are_counted_as_by_tiktoken() -> None:
    # Known from the encoding's own documentation and from the tokenizer page of its makers.
    assert count_tokens("tiktoken is great!") == 6
    assert count_tokens("") == 0
    assert count_tokens("<|endoftext|>") > 1, "what looks like a special token is text"
    assert count_tokens("\ud800 lone") > 0
    assert count_tokens("مرحبا 👋") > 3


def test_the_rule_for_words_is_that_of_tiktoken() -> None:
    assert vocabulary_module._SPLIT in inspect.getsource(openai_public.cl100k_base)
