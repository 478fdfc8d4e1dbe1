"""What tools look up and remember: the knowledge base, moments, what is known of users."""
