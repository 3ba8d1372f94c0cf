"""Runs whose ranks others start: torchrun, mpirun, Slurm."""
