"""What people are asked, and what they say."""
