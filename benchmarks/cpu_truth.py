"""Compare predicted with measured memory on the CPU: see ``benchmarks/cpu/truth.py``."""

from benchmarks.cpu.truth import main

if __name__ == "__main__":
    main()
