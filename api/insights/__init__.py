"""What a tenant's jobs have taught."""
