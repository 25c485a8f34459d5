"""What several experiments are made of: data, networks, removals and measurements."""
