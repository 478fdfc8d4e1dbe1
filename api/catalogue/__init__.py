"""What jobs are made of: tools, and plans to be checked against them."""
