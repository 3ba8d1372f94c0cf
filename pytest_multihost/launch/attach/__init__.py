"""Worlds whose ranks are started by several processes: torchrun, srun, mpirun."""
