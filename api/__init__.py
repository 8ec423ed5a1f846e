"""HTTP: what users and operators talk to, and the SDK and CLI that talk to it."""
