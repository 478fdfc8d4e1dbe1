"""What runs beside jobs: schedules, and what is sent to webhooks."""
