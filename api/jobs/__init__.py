"""What requests for jobs become: submission, answers to questions, what may be done again."""
