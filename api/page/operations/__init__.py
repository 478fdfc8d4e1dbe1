"""What runs beside jobs: schedules, what is sent to webhooks, and what was learned from jobs that have ended."""
