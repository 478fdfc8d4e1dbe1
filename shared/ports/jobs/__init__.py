"""The durable state of jobs as contracts: claims, transitions, the sweep, child jobs and wake-ups."""
