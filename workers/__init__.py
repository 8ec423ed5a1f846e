"""What runs on a node: the host of a rank, the rank process, and the numbers it computes."""
