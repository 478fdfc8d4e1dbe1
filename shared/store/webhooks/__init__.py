"""What leaves for a tenant's own address: endpoints, deliveries, signatures, their tables."""
