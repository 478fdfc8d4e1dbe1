"""A long history: a million jobs of 200 tenants in 90 days, made of real ones, and what it costs (B27)."""
