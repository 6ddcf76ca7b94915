"""What runs left, understood: their state, their numbers as curves, what differs between two of them."""
