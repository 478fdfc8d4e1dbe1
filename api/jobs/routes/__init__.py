"""Routes of jobs, in the words of jobs and in those of the message flow."""
