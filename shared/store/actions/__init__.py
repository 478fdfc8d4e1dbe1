"""Job actions: who asks for one, the sweep that carries it out, their table."""
