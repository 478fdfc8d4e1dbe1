"""Questions to people, apart from the work that waits for them: what an answer may be, questions made by rule."""
