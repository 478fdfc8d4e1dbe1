"""What is told of a job to who looks after it."""
