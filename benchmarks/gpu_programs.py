"""Estimate random programs on a GPU: see ``benchmarks/cuda/programs.py``."""

from benchmarks.cuda.programs import main

if __name__ == "__main__":
    main()
