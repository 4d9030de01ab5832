"""What protects a federation from its clients, and clients from the federation."""
