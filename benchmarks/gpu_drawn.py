"""Predict random training programs on GPUs: see ``benchmarks/cuda/drawn.py``."""

from benchmarks.cuda.drawn import main

if __name__ == "__main__":
    main()
