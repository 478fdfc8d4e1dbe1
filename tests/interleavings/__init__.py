"""Every operation of the store beside every other one: at once they come to what one of both orders comes to."""
