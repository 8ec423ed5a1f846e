"""How ranks exchange buffers: a port, and the host implementation behind it."""
