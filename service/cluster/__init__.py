"""The cluster: the only room that imports ray."""
