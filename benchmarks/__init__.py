"""How fast is Muster, beside its peers, in one run? `python -m benchmarks.NAME [--check] [--full]`."""
