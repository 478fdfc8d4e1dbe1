"""The Celery tasks: decode, call the engine, conclude. No SQL, no prompts, no decisions."""
