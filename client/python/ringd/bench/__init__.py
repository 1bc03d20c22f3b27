"""What `ringctl bench` runs: collectives on the user's own cluster, against its own limits.

`python -m ringd.bench` is the program of each rank; it prints one JSON object a line on rank 0,
which ringctl renders. NumPy only; PyTorch is imported for peers.
"""
