"""The control plane: decides and acts."""
