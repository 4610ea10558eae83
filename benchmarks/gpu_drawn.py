"""Estimate random programs in sizes for a GPU: see ``benchmarks/cuda/programs.py``."""

from benchmarks.cuda.programs import main

if __name__ == "__main__":
    main(scale=8, count=50, module="benchmarks.gpu_drawn")
