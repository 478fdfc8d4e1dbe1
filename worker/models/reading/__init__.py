"""The reader of replies: what a model's texts and calls mean, whatever server wrote them.

Pure, and driven by tables: another format is a row in `texts.py`, `calls.py` or `faults.py`, and a row of its test.
"""
