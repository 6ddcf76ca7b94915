"""Sockets: free ports, the interface towards an address, and the roll-call of machines."""
