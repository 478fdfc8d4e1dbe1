"""What planq learns from jobs that have ended, what of it a planner is offered, and whether that helps."""
