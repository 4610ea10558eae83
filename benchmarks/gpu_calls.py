"""Record single operators on the no-op runtime: see ``benchmarks/cuda/calls.py``."""

from benchmarks.cuda.calls import main

if __name__ == "__main__":
    main()
