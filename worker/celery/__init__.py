"""Every subclass of Celery's: application, pool, consumer, task events, tasks."""
